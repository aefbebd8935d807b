"""Computes with timers, times to live and windows that run in one task give the results of separate ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.testing import run

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
    state.timers.set("close", first + 10 * MINUTE, where=np.isnat(state.timers.get("close")))
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
        elif sink == "firsts" or shape not in (timers_in_front, windows_in_front):
            # How often running aggregates emit depends on the batches.
            assert rows_of(found) == rows_of(wanted), sink


def rows_of(table):
    return Counter(tuple(map(str, row.items())) for row in table.to_pylist())


def fares(table):
    return rows_of(table.group_by(["area", "car"]).aggregate([("fare", "sum")]))
