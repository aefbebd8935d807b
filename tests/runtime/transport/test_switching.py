from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dask_elastic.runtime.transport.switching import NAP, SWITCH_INTERVAL, TURN, ShortTurns, SwitchInterval, responsive


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """Set a long switch interval, and restore the previous one afterwards."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-3)
    yield
    sys.setswitchinterval(before)


def test_restore_keeps_switch_interval_set_by_other_code():
    interval = SwitchInterval()
    interval.shorten()
    sys.setswitchinterval(1e-3)
    interval.restore()
    assert abs(sys.getswitchinterval() - 1e-3) < 1e-6


def test_switch_interval_stays_short_until_last_restore():
    before = sys.getswitchinterval()
    interval = SwitchInterval()
    interval.shorten()
    interval.shorten()
    interval.restore()
    assert abs(sys.getswitchinterval() - SWITCH_INTERVAL) < 1e-6
    interval.restore()
    assert sys.getswitchinterval() == before


def test_responsive_restores_switch_interval_after_error():
    before = sys.getswitchinterval()
    try:
        with responsive():
            assert sys.getswitchinterval() < before
            raise KeyError
    except KeyError:
        assert sys.getswitchinterval() == before


def test_short_turns_yields_after_each_turn_and_not_before():
    now, naps = [0.0], []

    def sleep(seconds):
        naps.append(now[0])
        now[0] += 0.25

    pause = ShortTurns(turn=1.0, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        now[0] += 0.5
        pause()
    assert naps == [1.0, 2.25, 3.5, 4.75, 6.0]
    assert 0 < NAP < TURN < 5e-3
