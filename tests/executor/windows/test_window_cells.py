"""Rows are in the cells that a search of all instances finds, and cells close and expire as these do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_elastic as de
from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA, Grid, StateRecords
from dask_elastic.executor.emitter import LateRows
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.logic import make_logic
from dask_elastic.executor.windows.cells import EventCells, grid_of
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state import KeyedStore
from dask_elastic.testing import run
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import EventWindow, Windowing
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import TopologyError, UserCodeError
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.state_record import TimersDue

WINDOW = st.builds(EventWindow, st.integers(-20, 20), st.integers(1, 30), st.integers(1, 30))
WINDOWS = st.lists(WINDOW, min_size=1, max_size=3, unique=True).map(tuple)
TIMES = st.lists(st.integers(-60, 60), min_size=1, max_size=30)


def containing(windows, begin, end):
    """Return the instances that contain a span, by trying all begins."""
    found = []
    for window in windows:
        for number in range(-200, 200):
            first = window.start + number * window.frequency
            if first <= begin and end <= first + window.length:
                found.append((first, first + window.length))
    return found


def windowing_of(windows, **others):
    try:
        return Windowing(windows, ("at",), **others)
    except TopologyError:
        # Windows that share instances.
        return Windowing(windows[:1], ("at",), **others)


@given(windows=WINDOWS, times=TIMES, reached=st.integers(-60, 60), lateness=st.integers(0, 20), updates=st.booleans())
def test_each_row_is_in_the_cells_of_its_instances(windows, times, reached, lateness, updates):
    windowing = windowing_of(windows, allowed_lateness=lateness, emit="updates" if updates else "closed")
    cells = EventCells(windowing)
    found = cells.of_points(np.array(times), reached)
    rows = np.arange(len(times)) if found.rows is None else found.rows
    of = np.zeros(len(rows), int) if found.cells is None else found.cells
    pairs = sorted((row, found.starts[cell], found.ends[cell]) for row, cell in zip(rows.tolist(), of, strict=True))
    wanted, counts = [], RowCounts()
    for row, time in enumerate(times):
        instances = containing(windowing.windows, time, time + 1)
        counts = counts.plus(RowCounts(outside=not instances))
        taken = [one for one in instances if one[1] + lateness > reached]
        late, closed = len(instances) - len(taken), sum(end <= reached for _, end in taken)
        counts = counts.plus(RowCounts(len(taken) - closed, closed, late))
        if not cells.merges:
            wanted += [(row, *one) for one in taken]
        elif closed < len(taken):
            (slices,) = [(row, start, end) for number, start, end in pairs if number == row]
            assert slices[1] <= time < slices[2]
            assert all(begin <= slices[1] and slices[2] <= end for begin, end in instances)
            wanted.append(slices)
    assert pairs == sorted(wanted)
    assert found.counts == counts


@given(windows=WINDOWS, times=TIMES, reached=st.integers(-60, 60), lateness=st.integers(1, 20))
def test_late_rows_correct_the_closed_instances_that_contain_them(windows, times, reached, lateness):
    windowing = windowing_of(windows, allowed_lateness=lateness)
    cells = EventCells(windowing, separate=True)
    found = cells.of_closed(np.array(times), reached)
    rows = np.arange(len(times)) if found.rows is None else found.rows
    of = np.zeros(len(rows), int) if found.cells is None else found.cells
    pairs = sorted((row, found.starts[cell], found.ends[cell]) for row, cell in zip(rows.tolist(), of, strict=True))
    every = [(row, *one) for row, time in enumerate(times) for one in containing(windowing.windows, time, time + 1)]
    assert pairs == sorted(one for one in every if reached - lateness < one[2] <= reached)
    assert len(pairs) == EventCells(windowing).of_points(np.array(times), reached).counts.corrected


@given(window=WINDOW, spans=st.lists(st.tuples(st.integers(-40, 40), st.integers(0, 15)), min_size=1, max_size=20))
def test_a_span_is_in_the_instances_that_contain_all_of_it(window, spans):
    cells = EventCells(Windowing((window,), ("from", "to")))
    begins = np.array([begin for begin, _ in spans])
    ends = begins + np.array([length for _, length in spans])
    found = cells.of_spans(begins, ends, -(10**6))
    rows = np.arange(len(spans)) if found.rows is None else found.rows
    of = np.zeros(len(rows), int) if found.cells is None else found.cells
    pairs = sorted((row, found.starts[cell], found.ends[cell]) for row, cell in zip(rows.tolist(), of, strict=True))
    every = [(row, *one) for row in range(len(spans)) for one in containing([window], int(begins[row]), int(ends[row]))]
    assert pairs == sorted(every)


@given(
    window=WINDOW,
    spans=st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 90)), min_size=1, max_size=20),
    how=st.sampled_from(["within", "overlapping"]),
    lateness=st.integers(0, 20),
)
def test_a_span_that_ends_before_it_begins_is_in_no_instance(window, spans, how, lateness):
    cells = EventCells(Windowing((window,), ("from", "to"), spans=how, allowed_lateness=lateness))
    begins = np.array([begin for begin, _ in spans] + [3])
    ends = np.append(begins[:-1] - np.array([length for _, length in spans]), 4)
    found = cells.of_spans(begins, ends, 0)
    alone = cells.of_spans(begins[-1:], ends[-1:], 0)
    assert found.starts.tolist() == alone.starts.tolist()
    assert found.rows is None or set(found.rows.tolist()) <= {len(spans)}
    assert found.counts == alone.counts.plus(RowCounts(outside=len(spans)))
    sides = cells.sides([begins, ends], 0)
    assert not any(side[:-1].any() for side in sides)


@given(windows=WINDOWS, times=TIMES, since=st.integers(-80, 80), until=st.integers(-80, 80))
def test_slices_close_and_expire_with_their_instances(windows, times, since, until):
    cells = EventCells(windowing_of(windows))
    if not cells.merges:
        return
    found = cells.of_points(np.array(times), -(10**6))
    wanted = {one for time in times for one in containing(cells.windows, time, time + 1)}
    closing = cells.closing(found.starts, since, until)
    starts = found.starts.tolist()
    inside = {one for start in starts for one in containing(cells.windows, start, start + cells.slice)}
    assert wanted <= inside
    assert closing == sorted((one for one in inside if since < one[1] <= until), key=lambda one: one[::-1])
    expired = cells.expired(found.starts, found.ends, until)
    for start, is_expired in zip(starts, expired.tolist(), strict=True):
        needed = [end for _, end in containing(cells.windows, start, start + cells.slice) if end > until]
        assert is_expired == (not needed)


@given(windows=WINDOWS, lateness=st.integers(0, 20))
def test_records_are_made_wherever_an_instance_begins_ends_or_expires(windows, lateness):
    operator = Compute(
        "c", ("k",), {"n": de.aggregate.Count()}, windowing=windowing_of(windows, allowed_lateness=lateness)
    )
    grid = grid_of([operator])
    for window in operator.windowing.windows:
        for begin in range(window.start, window.start + 5 * window.frequency, window.frequency):
            for time in (begin, begin + window.length, begin + window.length + lateness):
                assert grid.any_in(time - 1, time)


def test_watermarks_between_two_ends_make_no_record():
    records = StateRecords(KeySpace(1, 4), {"event"}, Grid(10, 3))
    made = [time for time in (1, 2, 3, 4, 12, 13, 40, 42) if records.reached(time) is not None]
    assert made == [1, 3, 13, 40]


def topology_of(table, windowing, on_late=False, batch_rows=1):
    topology = de.Topology("windows")
    source = topology.source("rows", de.sources.Arrow(table, event_time="at", batch_rows=batch_rows))
    counted = source.key_by("k").compute({"n": de.aggregate.Count()}, name="counted", shards=4)
    counted.sink(de.sinks.Collect(), name="out")
    if on_late:
        counted._added(LateRows("late")).sink(de.sinks.Collect(), name="late rows")
    topology._operators["counted"] = dataclasses.replace(topology.operator("counted"), windowing=windowing)
    return topology


def table_of(times, unit="us"):
    return pa.table({"k": [1] * len(times), "at": pa.array(times, pa.timestamp(unit)), "x": range(len(times))})


def test_late_rows_and_rows_without_a_time_are_a_stream_with_all_columns():
    windowing = Windowing((EventWindow(0, 10, 10),), ("at",), late="stream", null_time="late")
    result = run(topology_of(table_of([0, 50, 5, None, 100, 20]), windowing, on_late=True))
    assert sorted(result.outputs["late rows"]["x"].to_pylist()) == [2, 3, 5]
    assert sorted(result.outputs["out"]["n"].to_pylist()) == [1, 1, 1]
    assert result.windows == {"counted": RowCounts(on_time=3, late=2, untimed=1)}


def test_rows_without_a_time_are_refused_on_demand():
    topology = topology_of(table_of([0, None]), Windowing((EventWindow(0, 10, 10),), ("at",), null_time="refuse"))
    with pytest.raises(UserCodeError, match="the time 'at' is null; filter such rows"):
        run(topology)
    result = run(topology, on_error="skip")
    assert result.dead_letters["counted"]["at"].to_pylist() == [None]
    assert result.outputs["out"]["n"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("unit", "kind"), [("s", pa.timestamp("us")), ("ms", pa.timestamp("us")), ("ns", pa.timestamp("ns"))]
)
def test_bounds_of_windows_are_times_of_a_unit_that_has_them(unit, kind):
    result = run(topology_of(table_of([3], unit), Windowing((EventWindow(0, 10, 10),), ("at",))))
    bounds = result.outputs["out"].select(["window_start", "window_end"])
    assert bounds.schema.types == [kind, kind]
    start, end = (column[0].as_py() for column in bounds.columns)
    time = table_of([3], unit)["at"][0].as_py()
    assert start <= time < end or unit == "ns"


def test_windows_over_no_times_are_refused():
    table = table_of([0]).set_column(1, "at", pa.array([0]))
    topology = de.Topology("windows")
    counted = topology.source("rows", de.sources.Arrow(table)).key_by("k")
    counted.compute({"n": de.aggregate.Count()}, name="counted")
    windowing = Windowing((EventWindow(0, 10, 10),), ("at",))
    operator = dataclasses.replace(topology.operator("counted"), windowing=windowing)
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), int))
    store.grant(0, 0)
    rows = table.to_batches()[0]
    with pytest.raises(TopologyError, match="column 'at', the time of its windows, has type int64; cast it"):
        make_logic(operator, store, store.session(0), True).process(rows, hash_columns(rows, ["k"]))


def test_task_without_rows_closes_what_a_shard_brings_along():
    """A shard moves to a node whose tasks have had no rows: they know the input from the record."""
    operator = Compute(
        "c", ("k",), {"n": de.aggregate.Count()}, windowing=Windowing((EventWindow(0, 20, 10),), ("at",))
    )
    rows = table_of([3, 7]).select(["k", "at"]).to_batches()[0]
    stores = [KeyedStore(1, lambda hashes: np.zeros(len(hashes), int)) for _ in range(2)]
    for store in stores:
        store.grant(0, 0)
    make_logic(operator, stores[0], stores[0].session(0), True).process(rows, hash_columns(rows, ["k"]))
    stores[1].install(stores[0].extract())
    described = pa.record_batch({"shard": pa.array([0], pa.int32())}).replace_schema_metadata(
        {INPUT_SCHEMA: rows.schema.serialize().to_pybytes()}
    )
    logic = make_logic(operator, stores[1], stores[1].session(0), True)
    policy = ErrorPolicy("fail", lambda failed: None)
    (first,) = logic.fire(Batch(described, None, 0.0, record=TimersDue(event=10)), policy)
    (second,) = logic.fire(Batch(described, None, 0.0, record=TimersDue(event=20), reached=10), policy)
    assert (first["n"].to_pylist(), second["n"].to_pylist()) == ([2], [2])
    assert len(stores[1]) == 0
