"""Rates of counters that are read from time to time."""

from __future__ import annotations

import contextlib

import pytest

from dask_elastic.meters import CounterRate, EdgeRows


def test_counter_that_falls_while_writers_end_has_no_negative_rate():
    rate = CounterRate(window=2.0)
    totals = [(0.0, 0), (1.0, 100), (2.0, 90), (3.0, 100), (4.0, 140)]
    rates = [rate.per_second(total, now) for now, total in totals]
    assert min(rates) >= 0.0
    assert rates[-1] == pytest.approx(20.0)


@pytest.mark.parametrize("gap", [0.5, 2.0, 10.0])
def test_rate_of_a_counter_that_was_not_read_for_a_while_is_that_since_then(gap):
    rate = CounterRate(window=2.0)
    times = [0.0, 1.0, 2.0, 3.0]
    times += [3.0 + gap, 4.0 + gap, 5.0 + gap]
    rates = [rate.per_second(1_000 * now, now) for now in times]
    assert rates == [0.0, *[pytest.approx(1_000.0)] * 6]


def test_burst_before_the_second_reading_is_no_rate_of_millions():
    rate = CounterRate(window=2.0)
    assert [rate.per_second(0, 0.0), rate.per_second(1_000, 0.002)] == [0.0, pytest.approx(10_000.0)]


def test_counter_rate_begins_anew_when_the_clock_was_set_back():
    rate = CounterRate(window=2.0)
    times = [100.0, 101.0, 60.0, 61.0]
    rates = [rate.per_second(total, now) for total, now in zip([0, 10, 20, 30], times, strict=True)]
    assert rates == [0.0, 10.0, 0.0, 10.0]


def test_rows_of_a_thread_that_has_ended_are_counted_once():
    edge_rows = EdgeRows(contextlib.nullcontext())
    first, second = {("a", "b"): 5}, {("a", "b"): 5}
    edge_rows.join(first)
    edge_rows.join(second)
    edge_rows.leave(second)
    second["a", "b"] = 99
    first["a", "b"] = 6
    assert edge_rows.totals() == {("a", "b"): 11}
    edge_rows.leave(first)
    assert edge_rows.totals() == {("a", "b"): 11}
