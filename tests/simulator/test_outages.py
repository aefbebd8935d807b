"""The parts of the simulation that inject faults, and that shrink failing scenarios."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import Scenario

from dask_elastic.executor.routes import Routes
from dask_elastic.simulator import Outage, Schedule, random_disturbances, shrink
from dask_elastic.simulator.network import Channel, Credit
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId

EXECUTOR = ExecutorId("per_key", 0)


def count(log, name, times):
    for number in range(times):
        log.append((name, number))
        yield None


def test_stopped_node_pauses_and_dead_node_is_removed():
    log = []
    schedule = Schedule(np.random.default_rng(0))
    for node in range(3):
        schedule.spawn(f"on {node}", count(log, node, 3), node)
    schedule.stopped.add(1)
    schedule.kill(2)
    while schedule.step():
        pass
    assert log == [(0, 0), (0, 1), (0, 2)]
    schedule.stopped.discard(1)
    while schedule.step():
        pass
    assert log[3:] == [(1, 0), (1, 1), (1, 2)]


def test_scheduled_call_runs_at_its_step_or_when_idle():
    log = []
    schedule = Schedule(np.random.default_rng(0))
    schedule.spawn("counting", count(log, "a", 3))
    schedule.at(2, lambda: log.append("second"))
    schedule.at(1, lambda: log.append("first"))
    schedule.at(10**6, lambda: log.append("last"))
    while schedule.step():
        pass
    assert log == [("a", 0), "first", ("a", 1), "second", ("a", 2), "last"]


def test_dead_node_loses_its_last_messages():
    channel = Channel("one way")
    for nbytes in range(4):
        channel.put(Credit(EXECUTOR, EXECUTOR, nbytes))
    channel.lose(0.5)
    assert [channel.take().nbytes, channel.take().nbytes] == [0, 1]
    assert not channel.has_packets()


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 59), max_size=6))
def test_shrink_returns_the_needed_parts(needed):
    assert shrink(range(60), lambda parts: needed <= set(parts)) == sorted(needed)


def test_disturbances_depend_on_seed_and_cover_all_kinds():
    drawn = [random_disturbances(np.random.default_rng(5), 200, 500, 0.5) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert [d.at for d in drawn[0]] == sorted(d.at for d in drawn[0])
    assert {type(d).__name__ for d in drawn[0]} == {"Move", "Cores", "Balance", "Flush", "Outage"}
    assert {d.kind for d in drawn[0] if isinstance(d, Outage)} == {"death", "hang", "suspicion", "desertion"}


def test_failing_seed_is_shrunk_to_a_scenario_to_keep(monkeypatch):
    monkeypatch.setattr(Routes, "put_back", lambda self, shard, pieces: None)
    failing = next(Scenario(seed) for seed in range(100) if Scenario(seed).fails())
    with pytest.raises((AssertionError, ProtocolError)) as found:
        failing.check()
    [history, note] = found.value.__notes__
    assert "the end of its history" in history
    assert "to be kept as a test" in note
    smallest = failing.shrunk()
    assert repr(smallest) in note
    assert any(isinstance(disturbance, Outage) for disturbance in smallest.disturbances)
    assert len(smallest.disturbances) < len(failing.drawn().disturbances) / 2
    assert smallest.fails()
