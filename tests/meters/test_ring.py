from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import MeterError, SlotRing


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
