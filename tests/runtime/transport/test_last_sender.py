"""Sources that send at one tick leave the runs of tasks to the last of them; none is lost, whichever comes last."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from dask_elastic.runtime.transport.last_sender import BLOCKED_SECONDS, LastSender

NOW = 100.0


class InThread:
    """A thread of its own for each source, since sources are told apart by their threads."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1)

    def __call__(self, function, *arguments):
        return self._pool.submit(function, *arguments).result(100)


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


def nothing():
    """Do nothing: what is left."""


def test_last_source_of_a_tick_gets_what_the_others_left():
    last, first, second = LastSender(Clock()), InThread(), InThread()
    first(last.announce, NOW)
    second(last.announce, NOW)
    assert first(last.leave, nothing)
    assert first(last.sent) == []
    assert not second(last.leave, nothing), "the last one runs tasks itself"
    assert second(last.sent) == [nothing]
    assert second(last.sent) == []


def test_nothing_is_left_to_sources_with_a_later_tick():
    last, first, second = LastSender(Clock()), InThread(), InThread()
    first(last.announce, NOW)
    second(last.announce, NOW + 0.001)
    assert not first(last.leave, nothing)


def test_only_sources_that_send_leave_runs():
    last, source = LastSender(Clock()), InThread()
    source(last.announce, NOW)
    assert not last.leave(nothing)


def test_source_that_waits_for_credit_takes_what_was_left():
    last, first, second = LastSender(Clock()), InThread(), InThread()
    for source in (first, second):
        source(last.announce, NOW)
    assert first(last.leave, nothing)
    assert first(last.sent, True) == [nothing], "the other one may wait for something as well"


def test_what_is_left_to_a_blocked_source_is_overdue():
    clock = Clock()
    last, first, second = LastSender(clock), InThread(), InThread()
    for source in (first, second):
        source(last.announce, NOW)
    assert first(last.leave, nothing)
    assert first(last.sent) == []
    assert last.overdue() == []
    clock.now += 2 * BLOCKED_SECONDS
    assert last.overdue() == [nothing]
    first(last.announce, clock.now)
    assert not first(last.leave, nothing), "nothing is left to a blocked source"
    assert second(last.sent) == []


def test_every_run_that_is_left_is_taken_once():
    last, taken, lock = LastSender(), [], threading.Lock()
    sources, ticks = 4, 200
    barrier = threading.Barrier(sources)

    def send(source):
        for tick in range(ticks):
            last.announce(0.0 if tick % 3 else 1e12)
            barrier.wait(100)
            last.announce(last._clock())
            if not last.leave(lambda tick=tick: taken.append((source, tick))):
                with lock:
                    taken.append((source, tick))
            for act in last.sent(waits=tick % 7 == source):
                with lock:
                    act()

    with ThreadPoolExecutor(sources) as pool:
        list(pool.map(send, range(sources)))
    for act in last.sent():
        act()
    assert sorted(taken) == [(source, tick) for source in range(sources) for tick in range(ticks)]
