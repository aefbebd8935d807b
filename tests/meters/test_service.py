from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import MeterError, ServiceRate


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50), st.floats(1e-7, 1e-3))
def test_service_rate_with_equal_cost_per_row_is_independent_of_batch_sizes(sizes, cost):
    service = ServiceRate()
    for rows in sizes:
        service.add(rows, rows * cost)
    assert service.per_second() == pytest.approx(1 / cost)


def test_service_rate_follows_a_change_within_few_horizons():
    service = ServiceRate()
    for _ in range(1000):
        service.add(100, 0.01)
    for _ in range(100):
        service.add(50, 0.1)
    assert service.per_second() == pytest.approx(500, rel=0.1)


def test_service_rate_without_busy_time_is_none():
    service = ServiceRate()
    service.add(10, 0.0)
    service.add(10, -1.0)
    assert service.per_second() is None


@pytest.mark.parametrize("horizon", [0.0, -1.0, float("nan")])
def test_service_rate_with_invalid_horizon_raises(horizon):
    with pytest.raises(MeterError, match="horizon is"):
        ServiceRate(horizon)
