"""A part is idle when nothing has arrived for a while; an arrival wakes it, whenever it comes."""

from __future__ import annotations

import sys
import threading

import pytest

from dask_elastic.meters.latency_window import LatencyWindow
from dask_elastic.runtime.protocol.reports import PartReport
from dask_elastic.runtime.worker.idle_watch import IDLE_AFTER, IdleWatch
from dask_elastic.runtime.worker.last_report import CHECK_SECONDS, LastReport


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def woken():
    return []


@pytest.fixture
def watch(clock, woken):
    return IdleWatch(lambda: woken.append(clock.now), clock)


def test_part_is_idle_after_a_time_without_arrivals(watch, clock, woken):
    assert not watch.look()
    clock.now += IDLE_AFTER - 0.1
    assert not watch.look()
    watch.note()
    clock.now += 0.2
    assert not watch.look()
    clock.now += IDLE_AFTER - 0.1
    assert not watch.look()
    clock.now += 0.2
    assert watch.look()
    assert woken == []


def test_arrival_wakes_an_idle_part_once(watch, clock, woken):
    watch.look()
    clock.now += IDLE_AFTER
    assert watch.look()
    watch.note()
    watch.note()
    assert woken == [clock.now]
    assert not watch.idle
    assert not watch.look()


def test_arrival_beside_a_look_is_never_missed(clock):
    """However the two interleave, the part is not idle afterwards, or the arrival has woken it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(500):
            woken = threading.Event()
            watch = IdleWatch(woken.set, clock)
            watch.look()
            clock.now += IDLE_AFTER
            start = threading.Barrier(2)

            def arrive(watch=watch, start=start):
                start.wait()
                watch.note()

            bringing = threading.Thread(target=arrive)
            bringing.start()
            start.wait()
            watch.look()
            bringing.join()
            assert woken.is_set() or not watch.idle
    finally:
        sys.setswitchinterval(interval)


def test_idle_part_has_no_measures_of_earlier_rows():
    """All measures are means over windows; the longest of them has to be over when a part counts as idle."""
    window = LatencyWindow()
    window.record(0.5, now=100.0, weight=3)
    assert window.recent(100.0).quantile(0.5) is not None
    assert window.recent(100.0 + IDLE_AFTER).quantile(0.5) is None


def report(**values):
    return PartReport(complete=False, **values)


def test_report_of_busy_part_is_made_and_sent_each_time(watch, clock):
    last = LastReport(watch, clock)
    for _ in range(10):
        watch.note()
        assert last.is_due()
        assert last.changed(report()) == report()
        clock.now += 0.5


def test_report_of_idle_part_is_made_rarely_and_sent_when_it_has_changed(watch, clock):
    last = LastReport(watch, clock)
    assert last.is_due()
    assert last.changed(report()) == report()
    clock.now += IDLE_AFTER
    assert last.is_due()
    assert last.changed(report()) is None
    clock.now += CHECK_SECONDS - 0.1
    assert not last.is_due()
    clock.now += 0.2
    assert last.is_due()
    assert last.changed(report(refused=1)) == report(refused=1)


def test_report_of_idle_part_is_sent_again_after_it_was_lost(watch, clock):
    last = LastReport(watch, clock)
    last.is_due()
    last.changed(report())
    clock.now += IDLE_AFTER
    last.lost()
    assert last.is_due()
    assert last.changed(report()) == report()


def test_first_report_after_an_arrival_is_made_at_once(watch, clock):
    last = LastReport(watch, clock)
    last.is_due()
    last.changed(report())
    clock.now += IDLE_AFTER
    last.is_due()
    last.changed(report())
    assert not last.is_due()
    watch.note()
    assert last.is_due()
    assert last.changed(report()) == report()
