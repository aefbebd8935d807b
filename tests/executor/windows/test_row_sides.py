"""Rows are divided by the windows that they are in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.executor.windows.cells import EventCells
from dask_elastic.executor.windows.row_sides import RowSides
from dask_elastic.topology.windowing import EventWindow, Windowing
from dask_elastic.vocab.window_side import WindowSide

window = st.builds(EventWindow, st.integers(-20, 20), st.integers(1, 40), st.integers(1, 40))
windowings = st.lists(window, min_size=1, max_size=3, unique_by=lambda one: one.length).map(
    lambda windows: Windowing(tuple(windows), ("at",), share=False)
)
times = st.lists(st.integers(-100, 100), min_size=1, max_size=30)


def begins_of(windowing, time):
    return {
        (one.length, begin)
        for one in windowing.windows
        for begin in range(time - one.length + 1, time + 1)
        if (begin - one.start) % one.frequency == 0
    }


def rows_at(at):
    return pa.record_batch({"at": pa.array(at, pa.timestamp("us"))})


@given(windowings, times, st.integers(-60, 60))
def test_rows_are_on_the_sides_of_their_windows(windowing, at, begin):
    earlier, later = RowSides(windowing).divide(rows_at(at), begin)
    for time, is_earlier, is_later in zip(at, earlier.tolist(), later.tolist(), strict=True):
        begins = [found for _, found in begins_of(windowing, time)]
        assert is_earlier == any(found < begin for found in begins)
        assert is_later == (any(found >= begin for found in begins) or not is_earlier)


@given(windowings, times, st.integers(-60, 60), st.integers(-60, 60))
def test_each_pair_of_a_row_and_a_window_counts_on_one_side(windowing, at, begin, reached):
    cells, at = EventCells(windowing), np.array(at)
    earlier, later = cells.sides([at], begin)
    found = []
    for side, chosen in ((WindowSide(begin, False), earlier), (WindowSide(begin, True), later)):
        if chosen.any():
            found.append(cells.of([at[chosen]], reached, side).counts)
    whole = cells.of([at], reached).counts
    assert sum(counts.on_time for counts in found) == whole.on_time
    assert sum(counts.late for counts in found) == whole.late


@given(windowings, st.integers(-60, 60))
def test_last_end_is_that_of_the_last_window_that_begins_before(windowing, begin):
    last = RowSides(windowing).last_end(begin)
    ends = [
        first + one.length
        for one in windowing.windows
        for first in range(begin - one.frequency, begin)
        if (first - one.start) % one.frequency == 0
    ]
    assert last == max(ends)


@pytest.mark.parametrize("rows", [rows_at([None]), pa.record_batch({"other": [1]}), pa.record_batch({"at": ["text"]})])
def test_rows_without_a_time_are_of_the_later_task_which_reports_them(rows):
    sides = RowSides(Windowing((EventWindow(0, 10, 10),), ("at",)))
    earlier, later = sides.divide(rows, 5)
    assert (earlier.tolist(), later.tolist()) == ([False], [True])
    assert sides.latest(rows) is None


def test_latest_time_is_found_in_any_unit():
    sides = RowSides(Windowing((EventWindow(0, 10, 10),), ("at",)))
    assert sides.latest(pa.record_batch({"at": pa.array([1, None, 3], pa.timestamp("ms"))})) == 3_000


spans = st.lists(st.tuples(st.integers(-60, 60), st.integers(0, 80)), min_size=1, max_size=10)


@given(window, spans, st.sampled_from(["within", "overlapping"]))
def test_windows_that_begin_behind_the_latest_time_have_none_of_the_rows(window, found, how):
    sides = RowSides(Windowing((window,), ("at", "until"), spans=how))
    begins, lengths = np.array(found).T
    columns = {"at": begins, "until": begins + lengths}
    rows = pa.record_batch({name: pa.array(times, pa.timestamp("us")) for name, times in columns.items()})
    begin = sides.latest(rows) + 1
    later = EventCells(Windowing((window,), ("at", "until"), spans=how)).sides([begins, begins + lengths], begin)[1]
    assert not later.any()


def test_latest_time_of_overlapping_spans_is_that_of_rows_with_both_times():
    sides = RowSides(Windowing((EventWindow(0, 10, 10),), ("at", "until"), spans="overlapping"))
    at, until = pa.array([1, 50, None], pa.timestamp("us")), pa.array([30, None, 90], pa.timestamp("us"))
    assert sides.latest(pa.record_batch({"at": at, "until": until})) == 29
    assert sides.latest(pa.record_batch({"at": at, "until": pa.nulls(3, pa.timestamp("us"))})) is None
