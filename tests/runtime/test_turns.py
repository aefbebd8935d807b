"""One thread at a time does brief work; threads that block delay no others for long."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dask_elastic.meters import BriefWork
from dask_elastic.runtime.worker.turns import Turns

DEADLINE = 30.0


class Running:
    """Counts the threads that are in a piece of work at the same time."""

    def __init__(self):
        self.now = self.most = self.calls = 0
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)
        sum(range(2_000))
        with self._lock:
            self.now -= 1


def blocked(turns, work, released):
    """Start a thread that has the turn, and return the thread once it has."""
    begun = threading.Event()

    def act():
        begun.set()
        assert released.wait(DEADLINE)

    thread = threading.Thread(target=turns.run, args=(work, 1, act))
    thread.start()
    assert begun.wait(DEADLINE)
    return thread


def long_work():
    work = BriefWork()
    while work.expects(1):
        work.add(busy=1.0, cpu=1.0)
    return work


def test_run_returns_the_result_and_the_seconds_it_took():
    began = time.perf_counter()
    result, seconds = Turns().run(BriefWork(), 1, lambda: sum(range(10)))
    assert result == 45
    assert 0 < seconds <= time.perf_counter() - began


def test_brief_batches_are_processed_one_at_a_time(monkeypatch):
    # A thread that the system suspends in its turn must not count as blocked here.
    monkeypatch.setattr("dask_elastic.runtime.worker.turns.LONGEST_TURN", DEADLINE)
    turns, running = Turns(), Running()
    with ThreadPoolExecutor(6) as threads:
        for _ in range(6):
            threads.submit(lambda: [turns.run(BriefWork(), 10, running) for _ in range(200)])
    assert running.calls == 1_200
    assert running.most == 1


def test_thread_that_blocks_in_its_turn_holds_up_no_other():
    turns, released = Turns(), threading.Event()
    thread = blocked(turns, BriefWork(), released)
    began = time.perf_counter()
    result, seconds = turns.run(BriefWork(), 1, lambda: "done")
    waited = time.perf_counter() - began
    assert thread.is_alive()
    released.set()
    thread.join(DEADLINE)
    assert result == "done"
    assert seconds < waited, "the wait for the turn does not count as work"


@pytest.mark.parametrize(("work", "rows"), [(BriefWork(), 100_000), (long_work(), 1)], ids=["many rows", "long"])
def test_other_work_needs_no_turn(monkeypatch, work, rows):
    monkeypatch.setattr("dask_elastic.runtime.worker.turns.LONGEST_TURN", DEADLINE)
    turns, released = Turns(), threading.Event()
    thread = blocked(turns, BriefWork(), released)
    assert turns.run(work, rows, thread.is_alive)[0]
    released.set()
    thread.join(DEADLINE)


def test_thread_that_must_not_wait_works_without_a_turn_that_another_one_has(monkeypatch):
    monkeypatch.setattr("dask_elastic.runtime.worker.turns.LONGEST_TURN", DEADLINE)
    turns, released = Turns(), threading.Event()
    thread = blocked(turns, BriefWork(), released)
    assert turns.may_wait
    with turns.without_waiting():
        assert not turns.may_wait
        assert turns.run(BriefWork(), 1, thread.is_alive)[0]
    assert turns.may_wait
    released.set()
    thread.join(DEADLINE)


def test_work_within_a_turn_is_part_of_it():
    turns = Turns()
    inner = BriefWork()
    result, _ = turns.run(BriefWork(), 1, lambda: turns.run(inner, 1, lambda: "inner")[0])
    assert result == "inner"


def test_turn_ends_with_an_error():
    turns = Turns()

    def fail():
        raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        turns.run(BriefWork(), 1, fail)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(turns.run, BriefWork(), 1, lambda: turns._lock.locked()).result(DEADLINE)[0]
    assert not turns._lock.locked()


def test_blocking_code_is_found_in_its_turns_and_then_has_none():
    turns, work = Turns(), BriefWork()
    for _ in range(10):
        turns.run(work, 1, lambda: time.sleep(0.002))
    assert not work.expects(1)


def test_thread_still_does_not_wait_after_a_part_that_does_not_either():
    turns = Turns()
    with turns.without_waiting():
        with turns.without_waiting():
            pass
        assert not turns.may_wait
    assert turns.may_wait
