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
