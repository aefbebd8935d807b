from __future__ import annotations

import sys

from dask_elastic.runtime.switching import SWITCH_INTERVAL, SwitchInterval, responsive


def test_turns_are_short_while_anybody_asks_and_then_as_before():
    before = sys.getswitchinterval()
    interval = SwitchInterval()
    interval.shorten()
    interval.shorten()
    interval.restore()
    assert abs(sys.getswitchinterval() - SWITCH_INTERVAL) < 1e-6
    interval.restore()
    assert sys.getswitchinterval() == before


def test_who_computes_keeps_the_others_responsive_even_when_it_fails():
    before = sys.getswitchinterval()
    try:
        with responsive():
            assert sys.getswitchinterval() < before
            raise KeyError
    except KeyError:
        assert sys.getswitchinterval() == before
