"""The parts of the simulation that make things go wrong, and that find out what it takes."""

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

ME = ExecutorId("per_key", 0)


def count(said, name, times):
    for number in range(times):
        said.append((name, number))
        yield None


def test_a_node_that_is_stopped_stands_still_and_a_dead_one_is_forgotten():
    said = []
    schedule = Schedule(np.random.default_rng(0))
    for node in range(3):
        schedule.spawn(f"on {node}", count(said, node, 3), node)
    schedule.stopped.add(1)
    schedule.kill(2)
    while schedule.step():
        pass
    assert said == [(0, 0), (0, 1), (0, 2)]
    schedule.stopped.discard(1)
    while schedule.step():
        pass
    assert said[3:] == [(1, 0), (1, 1), (1, 2)]


def test_what_was_agreed_happens_at_its_step_or_when_nothing_else_does():
    said = []
    schedule = Schedule(np.random.default_rng(0))
    schedule.spawn("counting", count(said, "a", 3))
    schedule.at(2, lambda: said.append("second"))
    schedule.at(1, lambda: said.append("first"))
    schedule.at(10**6, lambda: said.append("last"))
    while schedule.step():
        pass
    assert said == [("a", 0), "first", ("a", 1), "second", ("a", 2), "last"]


def test_a_node_that_dies_loses_the_end_of_what_it_sent():
    channel = Channel("one way")
    for nbytes in range(4):
        channel.put(Credit(ME, ME, nbytes))
    channel.lose(0.5)
    assert [channel.take().nbytes, channel.take().nbytes] == [0, 1]
    assert not channel.has_packets()


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 59), max_size=6))
def test_what_is_left_is_what_it_takes(needed):
    assert shrink(range(60), lambda parts: needed <= set(parts)) == sorted(needed)


def test_disturbances_are_drawn_from_their_seed_and_all_kinds_come():
    drawn = [random_disturbances(np.random.default_rng(5), 200, 500, 0.5) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert [d.at for d in drawn[0]] == sorted(d.at for d in drawn[0])
    assert {type(d).__name__ for d in drawn[0]} == {"Move", "Cores", "Balance", "Flush", "Outage"}
    assert {d.kind for d in drawn[0] if isinstance(d, Outage)} == {"death", "hang", "suspicion", "desertion"}


def test_a_failing_seed_is_cut_down_and_told_in_a_form_that_can_be_kept(monkeypatch):
    monkeypatch.setattr(Routes, "put_back", lambda self, shard, pieces: None)
    failing = next(Scenario(seed) for seed in range(100) if Scenario(seed).failure())
    with pytest.raises((AssertionError, ProtocolError)) as found:
        failing.check()
    [history, note] = found.value.__notes__
    assert "the end of its history" in history
    assert "to be kept as a test" in note
    smallest = failing.shrunk()
    assert repr(smallest) in note
    assert any(isinstance(disturbance, Outage) for disturbance in smallest.disturbances)
    assert len(smallest.disturbances) < len(failing.drawn().disturbances) / 2
    assert smallest.failure() is not None
