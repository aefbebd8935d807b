from __future__ import annotations

import json
import tracemalloc
from dataclasses import asdict, replace

import pytest
from distributed.protocol import dumps

from dask_elastic.runtime.protocol.calls import answer_codec
from dask_elastic.runtime.protocol.job_calls import Decisions, Snapshots
from dask_elastic.runtime.scheduler.control.decision_texts import EVENT_ENTRIES, decision_message, decisions_text
from dask_elastic.runtime.scheduler.control.published_decisions import KEPT_DECISIONS, PublishedDecisions
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision, HomeChange, HomeForecast, StrategyCost

ADDRESSES = [f"tcp://h{node}:1" for node in range(3)]


def decision(number, executors=1, homes=0, job="job", generation=1):
    wanted = {ExecutorId("op", index): 2 for index in range(executors)}
    changes = [CoreChange(job, generation, ExecutorId("op", i), {i % 3: 1}, {i % 3: 2}) for i in range(executors)]
    moved = tuple(HomeChange(ExecutorId("op", index), "a", "b", 1.0, 0.1) for index in range(homes))
    return Decision(
        number, 5.0, job, generation, 0.1, 0.2, 0.05, True, wanted, changes, True, "because", homes=moved
    )  # fmt: skip


@pytest.fixture
def published(fake):
    scheduler = fake.Scheduler({"a": 2})
    return PublishedDecisions(scheduler), scheduler


def test_event_of_a_decision_with_few_changes_has_them_all(published):
    decisions, scheduler = published
    one = decision(1, EVENT_ENTRIES, EVENT_ENTRIES)
    decisions.publish(one, ADDRESSES)
    assert scheduler.events == [("dask_elastic", {**decision_message(one, ADDRESSES), "left_off": {}})]


def test_message_of_a_move_has_all_that_is_known_of_it():
    costs = (StrategyCost("none", 9.0, 0.0, 0.0, 1.0), StrategyCost("home", 4.0, 2.0, 0.1, 0.0, False))
    forecast = HomeForecast("flux", 2.0, 0.1, 0.5, 1.0, costs)
    moved = tuple(HomeChange(ExecutorId("op", 3), "a", "b", 1.0, 0.1, one, 0.5) for one in (forecast, None))
    message = decision_message(replace(decision(1), homes=moved), ADDRESSES)
    assert message["homes"] == [{**asdict(one), "executor": "op[3]"} for one in moved]


def test_event_of_a_decision_with_many_changes_says_how_many_are_left_off(published):
    decisions, scheduler = published
    decisions.keep([large := decision(1, EVENT_ENTRIES + 7, EVENT_ENTRIES + 2)], ADDRESSES)
    decisions.publish(large, ADDRESSES)
    [(_, event)] = scheduler.events
    whole = decision_message(large, ADDRESSES)
    assert event["left_off"] == {"changes": 7, "homes": 2, "wanted": 7}
    assert event["changes"] == whole["changes"][:EVENT_ENTRIES]
    assert event["homes"] == whole["homes"][:EVENT_ENTRIES]
    assert [*event["wanted"].items()] == [*whole["wanted"].items()][:EVENT_ENTRIES]
    assert {name for name in whole if event[name] != whole[name]} == {"changes", "homes", "wanted"}
    [told] = json.loads(bytes(decisions_text(decisions.with_addresses("job", 1))))
    assert len(told["changes"]) == len(told["wanted"]) == EVENT_ENTRIES + 7


def test_decisions_with_equal_addresses_share_them(published):
    decisions, _ = published
    for number, addresses in enumerate([ADDRESSES, list(ADDRESSES), ADDRESSES[:2], list(ADDRESSES)]):
        decisions.keep([decision(number)], addresses)
    kept = [addresses for _, addresses in decisions.with_addresses("job", 1)]
    assert kept == [ADDRESSES, ADDRESSES, ADDRESSES[:2], ADDRESSES]
    assert kept[0] is kept[1]


def test_decisions_share_addresses_although_moves_of_homes_come_between_them(published):
    decisions, _ = published
    for number in range(0, 8, 2):
        decisions.keep([decision(number)], list(ADDRESSES))
        decisions.keep([decision(number + 1, executors=0, homes=1)], [])
    kept = [addresses for _, addresses in decisions.with_addresses("job", 1)]
    assert kept == [ADDRESSES, []] * 4
    assert len(set(map(id, kept))) == 2


def test_decisions_of_a_generation_are_kept_with_their_addresses(published):
    decisions, _ = published
    decisions.keep(
        (decision(number, generation=1 + number // 600) for number in range(KEPT_DECISIONS + 200)), ADDRESSES
    )
    assert [one.number for one, _ in decisions.with_addresses("job", 1)] == [*range(200, 600)]
    assert [one.number for one, _ in decisions.with_addresses("job", 2, last=2)] == [1_198, 1_199]
    assert decisions.newest("job", 1).number == 599
    assert decisions.newest("job", 3) is decisions.newest("other", 1) is None
    assert decisions.with_addresses("other", 1) == decisions.with_addresses("job", 1, last=0) == []


def test_text_of_decisions_is_copied_once(published):
    """That of a large job has hundreds of megabytes, and other threads wait while text, other than bytes, is copied."""
    decisions, _ = published
    decisions.keep([decision(number, 200) for number in range(50)], ADDRESSES)
    known = decisions.with_addresses("job", 1)
    tracemalloc.start()
    text = decisions_text(known)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.3 * len(text)
    assert [one["number"] for one in json.loads(bytes(text))] == [*range(50)]
    assert decisions_text([]) == b"[]"


@pytest.mark.parametrize("kind", [Decisions, Snapshots])
def test_answers_with_large_texts_are_sent_uncopied(kind):
    """Dask would copy bytes into its message, and hold the interpreter lock meanwhile."""
    text = memoryview(bytes(range(256)) * 4_000)
    frames = dumps({"answer": answer_codec(kind).encode(text)})
    assert any(frame is text or getattr(frame, "obj", None) is text.obj for frame in frames)
