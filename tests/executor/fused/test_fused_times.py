"""Computes with timers, times to live and windows that run in one task give the results of separate ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.testing import run
from dask_elastic.topology import build_components
from dask_elastic.vocab.errors import TopologyError

ROWS = 400
MINUTE = 60_000_000


def trips(random):
    """Rows of some areas and cars in the order of their times, so that batches do not decide what a timer's time is."""
    at = np.sort(random.integers(0, 60 * MINUTE, ROWS))
    columns = {
        "area": random.integers(0, 6, ROWS),
        "car": random.integers(0, 5, ROWS),
        "fare": random.integers(1, 50, ROWS),
        "at": pa.array(at, pa.timestamp("us")),
    }
    return pa.table(columns).to_batches(max_chunksize=40)


def source(topology, batches):
    return topology.source("trips", de.sources.Arrow(pa.Table.from_batches(batches), event_time="at"))


def count(batch, state):
    """Count the rows of a key until its timer fires, ten minutes after the first one; return the rows."""
    rows = state.get("rows") + state.grouping.sizes
    first = np.full(len(state), np.datetime64("2100-01-01", "us"))
    np.minimum.at(first, state.ordinals, batch["at"].to_numpy())
    state.timers.set("close", first + np.timedelta64(10, "m"), where=np.isnat(state.timers.get("close")))
    state.set("rows", rows)
    return batch


def close(batch, state):
    """Emit a row with the time at which the count ends, and begin again."""
    rows = state.get("rows").copy()
    state.set("rows", np.zeros(len(state), np.int64))
    names = {"area": batch["area"], "car": batch["car"], "fare": pa.array(rows), "at": batch["due"]}
    return pa.record_batch(names)


KEEPS = ["area", "car", "at"]
TIMED = {"state": {"rows": pa.int64()}, "timers": {"close": de.Timer(close)}, "keeps": KEEPS}
FARES = {"trips": agg.Count(), "fares": agg.Sum("fare")}


def timers_behind_own_logic(topology, rows):
    first = rows.key_by("area").compute(count_rows, state={"n": pa.int64()}, keeps=KEEPS, name="first")
    return first, first.key_by("area", "car").compute(count, **TIMED, name="second")


def timers_in_front(topology, rows):
    first = rows.key_by("area", "car").compute(count, **TIMED, name="first")
    return first, first.key_by("area").compute(FARES, name="second")


def timers_in_both(topology, rows):
    first = rows.key_by("area", "car").compute(count, **TIMED, name="first")
    return first, first.key_by("car", "area").compute(count, **TIMED, name="second")


def windows_in_front(topology, rows):
    first = rows.key_by("area", "car").window(["10min", "20min"]).compute(FARES, name="first")
    return first, first.key_by("area").compute({"most": agg.Max("fares")}, name="second")


def windows_behind_timers(topology, rows):
    first = rows.key_by("area", "car").compute(count, **TIMED, name="first")
    window = de.windows.hopping("10min", "5min")
    return first, first.key_by("area").window(window, time="at").compute(FARES, name="second")


def windows_behind_windows(topology, rows):
    first = rows.key_by("area", "car").window("5min").compute(FARES, name="first")
    window = first.key_by("area").window("15min", time=("window_start", "window_end"))
    return first, window.compute({"most": agg.Max("fares"), "trips": agg.Sum("trips")}, name="second")


def sessions_behind_filter(topology, rows):
    first = rows.key_by("area", "car").compute(count_rows, state={"n": pa.int64()}, keeps=KEEPS, name="first")
    few = first.filter(lambda batch: np.asarray(batch["fare"]) > 5, name="few")
    return first, few.key_by("area").window(de.windows.session("4min"), time="at").compute(FARES, name="second")


def counted_windows_behind(topology, rows):
    first = rows.key_by("area").compute(count_rows, state={"n": pa.int64()}, keeps=KEEPS, name="first")
    return first, first.key_by("area").window(de.windows.count(5)).compute({"trips": agg.Count()}, name="second")


def counted_windows_in_front(topology, rows):
    first = rows.key_by("area", "car").window(de.windows.count(6, 2)).compute(FARES, name="first")
    return first, first.key_by("area", "car").compute({"most": agg.Max("fares")}, name="second")


def counted_windows_in_both(topology, rows):
    first = rows.key_by("area").window(de.windows.count(4, 2)).compute(FARES, name="first")
    window = first.key_by("area").window(de.windows.count(3))
    return first, window.compute({"trips": agg.Sum("trips"), "most": agg.Max("fares")}, name="second")


EXPIRING = de.Value(pa.int64(), ttl="6min", ttl_clock="event")


@de.per_row
def remember(row, state):
    """Count the rows of a key, which are forgotten six minutes after the newest of them; return the row."""
    state["rows"] = state.get("rows", 0) + 1
    return row


def expiry_in_front(topology, rows):
    own = {"state": {"rows": EXPIRING}, "time": "at", "keeps": KEEPS}
    first = rows.key_by("area", "car").compute(remember, **own, name="first")
    return first, first.key_by("area").window("10min", time="at").compute(FARES, name="second")


def expiry_behind(topology, rows):
    first = rows.key_by("area").compute(count_rows, state={"n": pa.int64()}, keeps=KEEPS, name="first")
    own = {"state": {"rows": EXPIRING}, "time": "at", "keeps": KEEPS}
    return first, first.key_by("area", "car").compute(remember, **own, name="second")


def count_rows(batch, state):
    state.set("n", state.get("n") + state.grouping.sizes)
    return batch


SHAPES = [
    timers_behind_own_logic,
    timers_in_front,
    timers_in_both,
    windows_in_front,
    windows_behind_timers,
    windows_behind_windows,
    sessions_behind_filter,
    counted_windows_behind,
    counted_windows_in_front,
    counted_windows_in_both,
    expiry_in_front,
    expiry_behind,
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_fused_computes_with_times_give_what_separate_ones_give(shape, seed):
    topology = de.Topology("trips")
    first, second = shape(topology, source(topology, trips(np.random.default_rng(seed))))
    first.sink(de.sinks.Collect(), name="firsts")
    second.sink(de.sinks.Collect(), name="seconds")
    fused = run(topology, executors=1 + 2 * seed, seed=seed, fuse=[("first", "second")])
    apart = run(topology, executors=1 + 2 * seed, seed=seed)
    for operator in ("first", "second"):
        assert rows_of(fused.state[operator]) == rows_of(apart.state[operator]), operator
    for sink in ("firsts", "seconds"):
        found, wanted = fused.outputs[sink], apart.outputs[sink]
        assert found.num_rows, sink
        if sink == "seconds" and shape in (timers_behind_own_logic, timers_in_both):
            # Which rows come before the watermark that fires a timer is open, but each is counted once.
            assert fares(found) == fares(wanted)
        elif sink == "firsts" or shape not in (timers_in_front, windows_in_front, counted_windows_in_front):
            # How often running aggregates emit depends on the batches.
            assert rows_of(found) == rows_of(wanted), sink


@pytest.mark.parametrize("shape", [counted_windows_behind, counted_windows_in_front, counted_windows_in_both])
def test_counted_windows_run_in_one_task_by_default(shape):
    topology = de.Topology("trips")
    shape(topology, source(topology, trips(np.random.default_rng(0))))
    assert topology.fusions() == [("first", "second")]
    assert "in the task of 'first'" in topology.explain()
    components = build_components(topology, "auto")
    assert [component.name for component in components] == ["trips", "first"]


def rows_of(table):
    return Counter(tuple(map(str, row.items())) for row in table.to_pylist())


def fares(table):
    return rows_of(table.group_by(["area", "car"]).aggregate([("fare", "sum")]))


def windowed_in_front(rows):
    first = rows.key_by("area", "car").window("10min").compute(FARES, name="first", late="stream", null_time="late")
    return first, first, first.key_by("area").compute({"most": agg.Max("fares")}, name="second")


def windowed_behind(rows):
    first = rows.key_by("area").compute(count_rows, state={"n": pa.int64()}, keeps=KEEPS, name="first")
    windows = first.key_by("area").window("10min", time="at")
    second = windows.compute(FARES, name="second", late="stream", null_time="late")
    return second, second, first


@pytest.mark.parametrize("shape", [windowed_in_front, windowed_behind])
def test_late_rows_of_fused_windows_are_a_stream(shape):
    random = np.random.default_rng(3)
    rows = pa.Table.from_batches(trips(random))
    late = random.random(ROWS) < 0.1
    times = rows["at"].to_numpy() - np.where(late, np.timedelta64(30, "m"), np.timedelta64(0, "m"))
    untimed = random.random(ROWS) < 0.05
    rows = rows.set_column(3, "at", pa.array(times, pa.timestamp("us"), mask=untimed))
    topology = de.Topology("trips")
    # The watermark follows each batch.
    windows, results, _ = shape(source(topology, rows.to_batches(max_chunksize=40)))
    windows.late.sink(de.sinks.Collect(), name="late")
    results.sink(de.sinks.Collect(), name="windows")
    found = run(topology, fuse=[("first", "second")]).outputs
    assert found["late"].schema.names == rows.schema.names
    assert untimed.sum() < found["late"].num_rows <= untimed.sum() + late.sum()
    counted = pa.concat_tables(
        [found["late"].select(["fare"]), found["windows"].select(["fares"]).rename_columns(["fare"])]
    )
    assert sum(counted["fare"].to_pylist()) == sum(rows["fare"].to_pylist()), "each row is counted once, or is late"


def test_reader_of_late_rows_has_a_task_of_its_own():
    topology = de.Topology("trips")
    first, _, _ = windowed_in_front(source(topology, trips(np.random.default_rng(0))))
    first.late.key_by("area").compute({"rows": agg.Count()}, name="too late")
    assert topology.fusions() == [("first", "second")]
    with pytest.raises(TopologyError, match="'too late' reads the late rows of 'first'"):
        run(topology, fuse=[("first", "too late")])
