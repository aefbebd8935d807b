"""Calls of user code: which are listed, since when, and at which frame."""

from __future__ import annotations

import itertools
import threading
import time

import pyarrow as pa
import pytest

from dask_elastic.runtime.worker.user_calls import UserCalls, WatchedErrorPolicy

ROWS = pa.RecordBatch.from_pydict({"key": [1]})


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def calls(clock):
    return UserCalls(clock)


def test_call_is_listed_after_the_limit_with_its_frame_and_only_while_it_runs(calls, clock):
    entered, gate = threading.Event(), threading.Event()

    def logic(start, stop, errors):
        entered.set()
        gate.wait(30)
        return []

    policy = WatchedErrorPolicy("fail", print, calls)
    thread = threading.Thread(target=policy.run, args=("enrich", logic, ROWS), name="elastic-job-enrich[0]")
    thread.start()
    try:
        assert entered.wait(30)
        clock.now = 29.0
        assert calls.longer_than(30.0, node=2) == ()
        clock.now = 30.0
        assert calls.longer_than(None, node=2) == ()
        (call,) = calls.longer_than(30.0, node=2)
        assert (call.operator, call.activity, call.node, call.thread) == ("enrich", "process", 2, thread.name)
        assert call.frame.startswith(__file__)
        assert call.frame.endswith("in logic"), "not the frame of threading.Event.wait, and none of dask_elastic"
    finally:
        gate.set()
        thread.join(30)
    assert calls.longer_than(30.0, node=2) == ()


def test_call_that_raises_is_not_listed(calls, clock):
    def raise_error(*_):
        raise ValueError

    with pytest.raises(Exception, match="ValueError"):
        WatchedErrorPolicy("fail", print, calls).run("enrich", raise_error, ROWS)
    clock.now = 100.0
    assert calls.longer_than(30.0, node=0) == ()


def test_call_within_a_call_counts_from_its_own_start(calls, clock):
    with calls.running("outer", "write"):
        clock.now = 40.0
        with calls.running("inner", "process"):
            assert calls.longer_than(30.0, node=0) == ()
            clock.now = 80.0
            assert [call.operator for call in calls.longer_than(30.0, node=0)] == ["inner"]
        assert [call.operator for call in calls.longer_than(30.0, node=0)] == ["outer"]


def test_start_of_a_call_stays_the_same_while_the_clocks_drift(calls, clock, monkeypatch):
    today = itertools.count(1_000_000.0, 40.5)
    monkeypatch.setattr(time, "time", lambda: next(today))
    with calls.running("outer", "write"):
        found = []
        for _ in range(3):
            clock.now += 40.0
            found += calls.longer_than(30.0, node=0)
    assert [call.since for call in found] == [1_000_000.0 - 40.0] * 3
    with calls.running("outer", "write"):
        clock.now += 40.0
        (again,) = calls.longer_than(30.0, node=0)
    assert again.since != found[0].since


def test_wait_for_rows_of_a_queue_does_not_count(calls, clock):
    def queue():
        clock.now += 100.0
        listed.append(calls.longer_than(30.0, node=0))
        yield ROWS

    listed = []
    with calls.running("read", "read"):
        assert list(calls.awaited(queue())) == [ROWS]
        assert calls.longer_than(30.0, node=0) == ()
    assert listed == [()]
