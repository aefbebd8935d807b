from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import (
    InputTraffic,
    LatencyWindow,
    MeterError,
    Rate,
    RecentMean,
    ShardArrivals,
    ShardLoad,
    SlotRing,
)
from dask_elastic.meters.group_flows import GroupFlows


def test_ring_weighs_oldest_slot_by_its_share():
    ring = SlotRing(1.0, 4, lambda: [0.0])
    for now in (0.0, 0.25, 0.5, 0.75, 1.0):
        ring.at(now)[0] += 1
    assert [share for _, share in ring.read(1.125)] == [0.5, 1, 1, 1, 1]
    assert [share for _, share in ring.read(1.0)] == [1.0, 1, 1, 1, 1]


def test_ring_late_value_joins_the_slot_that_replaced_its_own():
    ring = SlotRing(1.0, 2, lambda: [0])
    ring.at(10.0)[0] += 1
    ring.at(8.5)[0] += 1
    assert [value for value, _ in ring.read(10.0)] == [[2]]


def test_ring_read_includes_values_of_writer_ahead():
    ring = SlotRing(1.0, 2, lambda: [0])
    ring.at(10.6)[0] += 1
    assert [value for value, _ in ring.read(10.4)] == [[1]]


def test_ring_span_grows_to_the_window():
    ring = SlotRing(2.0, 4, lambda: [0])
    assert ring.span(5.0) == 2.0
    ring.at(5.0)
    assert [ring.span(now) for now in (4.0, 5.1, 6.0, 9.0)] == [0.5, 0.5, 1.0, 2.0]


def test_ring_accepts_negative_times():
    ring = SlotRing(1.0, 4, lambda: [0])
    ring.at(-0.1)[0] += 1
    assert [value for value, _ in ring.read(0.1)] == [[1]]


@pytest.mark.parametrize(("window", "slots"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (float("inf"), 1), (1.0, 0)])
def test_ring_with_invalid_arguments_raises(window, slots):
    with pytest.raises(MeterError, match=r"window is|slots is"):
        SlotRing(window, slots, list)


@given(st.lists(st.floats(-3, 30), max_size=60))
def test_ring_values_count_in_the_slot_of_their_time_in_any_order(times):
    ring = SlotRing(1.0, 4, lambda: [0])
    slots: dict[int, tuple[int, int]] = {}
    for now in times:
        ring.at(now)[0] += 1
        number = math.floor(now / 0.25)
        newest, count = slots.get(number % 5, (number, 0))
        slots[number % 5] = (number, 1) if number > newest else (newest, count + 1)
    expected = [[count] for _, count in sorted(slots.values())]
    assert [value for value, _ in ring.read(-100.0, 0.0)] == expected


def test_meters_follow_a_clock_that_is_set_back_for_minutes():
    rate, mean, latency, loads = Rate(1.0), RecentMean(1.0), LatencyWindow(1.0), ShardLoad(1)
    highest = 0.0
    for begin in (1_000.0, 800.0):
        for tenth in range(50):
            now = begin + tenth / 10
            highest = max(highest, rate.per_second(now))
            rate.add(100, now)
            mean.add(now, 1, now)
            latency.record(0.5, now)
            loads.add(np.array([1]), 0.05, now)
            read = rate.per_second(now), mean.weight(now), latency.recent(now).count, float(loads.loads(now)[0])
    assert read == (pytest.approx(1_000, rel=0.11), pytest.approx(10, rel=0.11), 11, pytest.approx(0.5, rel=0.11))
    assert highest < 3_500, "what was counted before the step counts for some seconds at most"
    assert mean.mean(now) == pytest.approx(now, abs=1.0)
    assert rate.count == 10_000


def test_ring_keeps_values_that_are_ahead_of_a_late_reader():
    rate = Rate(1.0)
    for second in range(1_000, 1_020):
        for tenth in range(10):
            rate.add(100, second + tenth / 10)
        # The reader has waited for a batch, and reads twice at the time at which it began to wait.
        assert rate.per_second(second - 5.0) > 0
        assert rate.total(second - 5.0) > 0
    assert rate.per_second(1_020.0) == pytest.approx(1_000.0)


def test_meters_of_readings_follow_a_clock_that_is_set_back():
    arrivals, traffic, flows = ShardArrivals(2), InputTraffic(window=2.0), GroupFlows()
    rows = np.zeros(2)
    for begin in (100_000.0, 80_000.0):
        for second in range(5):
            rows = rows + np.array([1_000.0, 500.0])
            arrivals.note(rows, begin + second)
            traffic.nbytes["a"] += 300
            flows.note(0, 10, False, {"next": np.array([600.0])})
            read = traffic.per_second(begin + second), flows.measured(begin + second, np.array([50.0]))
    assert arrivals.per_second().tolist() == [1_000.0, 500.0]
    assert read[0] == (("a", 300.0),)
    assert read[1][0].rate.tolist() == [pytest.approx(3_000.0)]
