"""What people read of a decision, case by case."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.reason import duration, reason
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot


def executor(index=0, cores=None, arrival=1000.0, queue=0, **more):
    held = {0: 2} if cores is None else cores
    done = min(arrival, 1000.0 * sum(held.values()))
    return ExecutorSnapshot(ExecutorId("op", index), 0, held, arrival, 1000.0, done, queue=queue, **more)


def said(*executors, nodes=((8, False), (8, False)), ticks=1, settings=None, **more):
    """What is said at the last of some ticks with the same measurements; the decisions of the first are carried out."""
    made = tuple(NodeSnapshot(f"n{i}", f"h{i}", cores, retiring) for i, (cores, retiring) in enumerate(nodes))
    loop, decisions = ControlLoop(settings or ControlSettings()), ()
    for second in range(ticks):
        job = JobSnapshot("job", 1, tuple(executors), **{"latency_target": 0.05, **more})
        decisions = loop.tick(Snapshot(float(second), made, (job,))).decisions or decisions
    (decision,) = decisions
    return decision.reason


def test_an_overload():
    assert said(executor(queue=300, arrival=2000.0)) == (
        "op[0] is overloaded (up to 150 ms of work wait, cores 100 % busy), so cores are planned for 1.5 times what "
        "they achieve."
    )


def test_many_overloads_are_counted():
    executors = [executor(i, {i % 2: 1}, 1000.0, 200) for i in range(6)]
    assert said(*executors).startswith("op[0], op[1], op[2] and 3 more are overloaded (up to 200 ms of work wait")


def test_a_latency_that_is_expected():
    assert said(executor(arrival=1700.0), latency_target=0.004) == (
        "7.95 ms are expected of the cores held, the target is 4 ms."
    )


def test_too_few_cores():
    reason = said(executor(arrival=2100.0), latency_target=None)
    assert reason == "the cores held are too few for 2,310 tuples/s, which is with headroom."


def test_a_surplus():
    assert said(executor(cores={0: 8}), ticks=11) == "a surplus of cores has lasted 10 s or longer."


def test_a_node_that_retires():
    assert said(executor(), nodes=((8, True), (8, False))) == "n0 retires."


def test_data_that_comes_home():
    reason = said(executor(cores={1: 2}, bytes_in=1e9))
    assert reason == "cores change their nodes, for data to travel less or to make room."


def test_a_shard_that_limits():
    reason = said(executor(queue=300, arrival=2000.0, shard_load=np.array([1.0, 0.5, 0.5])), ticks=1)
    assert reason.endswith("one shard is 50 % of the load of op[0]: beyond 3 cores none helps.")


def test_what_is_lacking_and_out_of_reach():
    reason = said(executor(cores={0: 8}, arrival=8000.0, queue=900), nodes=((8, False),))
    assert "no allocation of 8 cores reaches 50 ms: this is the best effort; " in reason
    assert reason.endswith("5 more cores would be needed than it can have.")


def test_a_target_below_the_hop():
    reason = said(executor(cores={0: 4}, sojourn=0.001), latency=0.3, ticks=9)
    assert "no allocation of 16 cores reaches 50 ms, 299 ms are spent outside of its executors" in reason


@pytest.mark.parametrize(
    ("feasible", "text"),
    [
        (True, "nothing is amiss any more."),
        (
            False,
            "no allocation of 6 cores reaches 50 ms, 6 s are spent outside of its executors: this is the best effort.",
        ),
    ],
)
def test_nothing_is_amiss_only_where_nothing_is(feasible, text):
    none = np.empty(0, dtype=np.int64)
    job = JobSnapshot("job", 1, (), latency_target=0.05)
    demand = SimpleNamespace(
        overloaded=(), satisfied=True, feasible=feasible, hop=6.0, places=(), most=none, needed=none
    )
    portion = SimpleNamespace(exchanged=False, starved=0)
    assert reason(job, demand, portion, (), {}, (), {}, 6, ControlSettings()) == text


def test_what_is_held_back():
    settings = ControlSettings(budget_bytes=10.0)
    executors = [executor(i, state_bytes=20 + i) for i in range(2)]
    reason = said(*executors, nodes=((8, True), (8, False)), settings=settings)
    assert "held back: op[1], because it moves" in reason


def test_a_dry_run():
    assert said(executor(arrival=2100.0), dry_run=True).endswith("a dry run: nothing is carried out.")


def test_slots_that_are_shared():
    reason = said(executor(0, {0: 1}), executor(1, {0: 1}), executor(2, {0: 1}, 3000.0), nodes=((2, False),))
    assert "executors outnumber the cores and share them" in reason


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.05, "50 ms"), (1.0, "1 s"), (0.0, "0 us"), (0.0123456, "12.3 ms"), (90, "90 s")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
