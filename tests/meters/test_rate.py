from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import Rate


@given(st.floats(1, 1e4), st.floats(0, 1e6), st.floats(0.2, 20))
def test_rate_of_steady_stream_is_within_two_per_cent(amount, start, window):
    rate = Rate(window=window)
    for step in range(400):
        rate.add(amount, start + step * window / 100)
    expected = amount * 100 / window
    assert rate.per_second(start + 4 * window) == pytest.approx(expected, rel=0.02)


def test_rate_before_first_full_window_is_mean_since_start():
    rate = Rate(window=10.0)
    for tenth in range(20):
        rate.add(5, tenth / 10)
    assert rate.per_second(2.0) == pytest.approx(50, rel=0.1)


def test_rate_total_forgets_old_values_and_count_does_not():
    rate = Rate(window=1.0)
    assert rate.per_second(0.0) == 0.0
    rate.add(7, 0.0)
    assert rate.total(0.5) == 7
    assert rate.total(2.0) == 0
    assert rate.count == 7
    assert rate.window == 1.0


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 100))), st.floats(0, 12))
def test_rate_total_is_between_zero_and_sum_of_added(events, now):
    rate = Rate(window=2.0, slots=5)
    for time, amount in sorted(events):
        rate.add(amount, time)
    assert 0 <= rate.total(now) <= sum(amount for _, amount in events)
