"""Bytes per second by upstream instance: recent, heaviest first, few of many."""

from __future__ import annotations

import pytest

from dask_elastic.meters.input_traffic import KEPT, InputTraffic


def test_rates_are_those_of_the_window_and_not_of_the_whole_time():
    traffic = InputTraffic(window=2.0)
    traffic.per_second(0.0)
    for second in range(1, 20):
        traffic.nbytes["early" if second < 10 else "late"] += 100
        rates = dict(traffic.per_second(float(second)))
        if second == 5:
            assert rates == {"early": 100.0}
    assert rates == {"late": 100.0}


def test_bytes_before_first_reading_do_not_count():
    traffic = InputTraffic(window=2.0)
    traffic.nbytes["a"] += 1_000_000
    assert traffic.per_second(5.0) == ()
    traffic.nbytes["a"] += 10
    assert traffic.per_second(6.0) == (("a", 10.0),)


def test_second_reading_at_one_moment_is_that_of_the_first():
    traffic = InputTraffic(window=2.0)
    traffic.per_second(0.0)
    traffic.nbytes["a"] += 10
    assert traffic.per_second(1.0) == traffic.per_second(1.0) == (("a", 10.0),)


def test_only_the_heaviest_of_many_instances_are_returned():
    traffic = InputTraffic(window=2.0)
    traffic.per_second(0.0)
    for instance in range(3 * KEPT):
        traffic.nbytes[instance] += instance
    rates = traffic.per_second(1.0)
    assert [instance for instance, _ in rates] == list(range(3 * KEPT - 1, 2 * KEPT - 1, -1))
    assert sum(rate for _, rate in rates) == pytest.approx(sum(range(2 * KEPT, 3 * KEPT)))


def test_readings_outside_the_window_are_dropped():
    traffic = InputTraffic(window=2.0)
    for tenth in range(1_000):
        traffic.per_second(tenth / 10)
    assert len(traffic._readings) <= 22
