from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.meters import LatencyWindow, RecentMean


def test_recent_mean_weighs_values_and_forgets_old_ones():
    mean = RecentMean(window=1.0)
    assert mean.mean(0.0) is None
    assert mean.weight(0.0) == 0
    mean.add(1.0, 3, 0.0)
    mean.add(5.0, 1, 0.5)
    assert mean.mean(0.5) == 2.0
    assert mean.weight(0.5) == 4
    assert mean.mean(1.3) == 5.0
    assert mean.mean(3.0) is None
    assert mean.window == 1.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 4), st.floats(0, 100), st.integers(1, 50)), min_size=1), st.floats(0, 5))
def test_recent_mean_is_within_range_of_values(events, now):
    meter = RecentMean(window=2.0, slots=5)
    for time, value, weight in sorted(events):
        meter.add(value, weight, time)
    mean = meter.mean(now)
    values = [value for _, value, _ in events]
    assert mean is None or min(values) - 1e-9 <= mean <= max(values) + 1e-9
    assert 0 <= meter.weight(now) <= sum(weight for _, _, weight in events)


def test_latency_window_read_with_shorter_window_omits_older_values():
    latency = LatencyWindow(window=10.0, slots=10)
    for second in range(10):
        latency.record(float(second + 1), now=100.5 + second)
    assert latency.recent(110.0).count == 10
    assert latency.recent(110.0, window=2.0).count == 2
    assert latency.recent(110.0, window=2.0).quantile(0.0) == pytest.approx(9.0, rel=0.02)
    assert latency.recent(110.0, window=60.0).count == 10
