"""Ticks are stretched under load, and are then at the same times for all sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.topology.ticks import LEAD, LIGHT_LOAD, LONGEST_TICK, TICK_SECONDS, Ticks, next_tick


def loaded(ticks, cores, start):
    for second in range(start, start + 60):
        ticks.note(second, cores * second)


def test_ticks_are_stretched_with_the_load_and_shortened_again():
    ticks = Ticks()
    assert ticks.interval == TICK_SECONDS
    loaded(ticks, 2 * LIGHT_LOAD, 0)
    assert ticks.interval == LONGEST_TICK
    assert ticks.within(LONGEST_TICK) == (LONGEST_TICK, LEAD * LONGEST_TICK)
    loaded(ticks, LIGHT_LOAD / 2, 60)
    assert ticks.interval == TICK_SECONDS
    assert ticks.within(LONGEST_TICK) == (TICK_SECONDS, 0.0)


def test_load_is_measured_over_some_time():
    ticks = Ticks()
    loaded(ticks, 2 * LIGHT_LOAD, 0)
    for _ in range(100):
        ticks.note(59.001, 0.0)
    assert ticks.interval == LONGEST_TICK


@given(due=st.floats(1e9, 2e9), others=st.floats(0.0, 0.02), interval=st.floats(1.01 * TICK_SECONDS, LONGEST_TICK))
def test_sources_with_rows_due_in_one_interval_share_a_stretched_tick(due, others, interval):
    tick = next_tick(due, due - 10, interval)
    assert due - interval - 1e-6 <= tick <= due + 1e-6
    later = tick + min(others, 0.98 * interval) + 0.01 * interval
    other = next_tick(later, due - 10, interval)
    assert other == pytest.approx(tick, abs=1e-6)


@given(due=st.floats(1e9, 2e9), interval=st.floats(TICK_SECONDS, LONGEST_TICK))
def test_next_tick_is_after_the_last_one(due, interval):
    tick = next_tick(due, due - 10, interval)
    assert tick < next_tick(due, tick, interval) <= tick + interval + 1e-6
