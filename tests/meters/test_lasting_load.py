"""Load that has lasted for some periods, whatever single batches took."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import LastingLoad, MeterError
from dask_elastic.meters.lasting_load import PERIOD, PERIODS

EACH = 0.001
RATE = 100.0


def measured(load, batches, began=0.0, every=0.01, busy=EACH):
    """Add batches of one row at regular times; returns the time of the last one."""
    for number in range(batches):
        load.add(1, busy, began + number * every)
    return began + (batches - 1) * every


def test_load_is_unknown_until_enough_periods_have_ended():
    load = LastingLoad(period=1.0)
    load.add(10, 0.5, 0.5)
    for second in range(1, PERIODS + 1):
        assert load.cores(RATE) is None
        load.add(10, 0.5, float(second))
    assert load.cores(RATE) == pytest.approx(RATE * 0.05)


@given(st.integers(60, 200), st.floats(0.0, 100.0), st.booleans())
def test_one_batch_never_raises_the_load(before, stall, later):
    load = LastingLoad()
    now = measured(load, 150 + before)
    load.add(1, EACH + stall, now + stall)
    if later:
        measured(load, 60, now + stall + 0.01)
    assert load.cores(RATE) == pytest.approx(RATE * EACH)


def test_batches_of_several_threads_that_one_event_held_up_end_one_period():
    load = LastingLoad()
    now = measured(load, 150) + 2 * PERIOD
    # Each thread reads the clock before it adds its batch.
    for early in range(PERIODS):
        load.add(1, 2 * PERIOD, now - early * 1e-4)
    assert load.cores(RATE) == pytest.approx(RATE * EACH)


@given(st.integers(0, 60), st.lists(st.floats(0.0, 0.05), max_size=6))
def test_batches_that_are_held_up_within_a_period_do_not_raise_the_load(before, stalls):
    load = LastingLoad()
    now = measured(load, 150 + before)
    for stall in stalls:
        now += EACH + stall
        load.add(1, EACH + stall, now)
    assert now < (150 + before) * 0.01 + PERIOD
    measured(load, 60, now + 0.01)
    assert load.cores(RATE) == pytest.approx(RATE * EACH)


@given(st.floats(0.002, 5.0), st.integers(0, 100))
def test_higher_costs_count_once_they_have_lasted(each, before):
    load = LastingLoad()
    now = measured(load, 150 + before)
    every = max(each, 0.01)
    # The first period may have begun before.
    batches = (PERIODS + 1) * math.ceil(PERIOD / every + 1)
    measured(load, batches, now + every, every, each)
    assert load.cores(RATE) == pytest.approx(RATE * each)


def test_busy_time_without_rows_counts_as_it_is():
    load = LastingLoad(period=1.0)
    for second in range(PERIODS + 1):
        load.add(0, 0.25, second + 0.5)
        load.add(100, 0.1, float(second + 1))
    assert load.cores(0.0) == pytest.approx(0.25)
    assert load.cores(1_000.0) == pytest.approx(1.25)


def test_period_without_rows_keeps_the_cost_of_a_row():
    load = LastingLoad(period=1.0)
    load.add(10, 0.1, 1.0)
    for second in range(2, 2 * PERIODS):
        load.add(0, 0.0, float(second))
    assert load.cores(10.0) == pytest.approx(0.1)


def test_clock_that_is_set_back_does_not_stop_the_meter():
    load = LastingLoad()
    now = measured(load, 150)
    measured(load, 200, now - 3_600.0, busy=10 * EACH)
    assert load.cores(RATE) == pytest.approx(RATE * 10 * EACH)


@pytest.mark.parametrize("period", [0.0, -1.0, math.nan, math.inf])
def test_wrong_period_is_refused(period):
    with pytest.raises(MeterError, match="positive number"):
        LastingLoad(period)
