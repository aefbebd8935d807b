"""The CPU time of windows: of functions with a merge, and with corrections by late rows.

First prints one JSON line per number of keys: nanoseconds of one task per row, without late rows, for aggregates and
for functions with a merge that compute the same, of batches and per key.

Then prints one JSON line per setting: nanoseconds of one task per row (adding rows, correcting results, closing
instances) with either plan, their ratio, and that which the cost model predicts by what the slices have measured.
The task adds counts and sums without an executor around it. A share of the rows is late by up to the allowed lateness;
the others are in the order of time. Settings alternate between the plans; medians of the runs.

    python benchmarks/corrections.py [--rows 1000000] [--runs 3] [--keys 1000 10000] [--batch 8192]
        [--only corrections|own-logic]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import dask_elastic as de
from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.topology.windowing import Windowing
from dask_elastic.vocab.state_record import TimersDue
from dask_elastic.windows.unit_costs import PartMeasure, measured_costs
from dask_elastic.windows.window_plan import plan_windows, window_load

SHARDS, TASK, SECOND = 64, 1, 1_000_000
WINDOWS = {
    "1h every 10min": de.windows.hopping("1h", "10min"),
    "1h every 1min": de.windows.hopping("1h", "1min"),
    "5, 10, 15, 20min": ["5min", "10min", "15min", "20min"],
}
LATENESS = "10min"
HOURS = 6
SCHEMA = pa.schema({"key": pa.int64(), "value": pa.int64(), "at": pa.timestamp("us")})
OUTPUT = {"most": pa.int64(), "total": pa.int64()}
AGGREGATES = {"rows": de.aggregate.Count(), "total": de.aggregate.Sum("value")}


def stream(rows: int, keys: int, late: float) -> pa.RecordBatch:
    """Return rows of some hours, some of them late."""
    random = np.random.default_rng(7)
    times = np.sort(random.integers(0, HOURS * 3600 * SECOND, rows))
    times -= np.where(random.random(rows) < late, random.integers(0, 600 * SECOND, rows), 0)
    columns = [random.integers(0, keys, rows), random.integers(0, 100, rows), times]
    return pa.record_batch(
        [pa.array(column) for column in columns[:2]] + [pa.array(times, SCHEMA.field(2).type)], SCHEMA
    )


def extremes(rows: pa.RecordBatch, parts: Any) -> dict[str, Any]:
    """Return a partial result of each part, without Python per key."""
    values, starts = rows["value"].to_numpy(), parts.offsets[:-1]
    return {"most": np.maximum.reduceat(values, starts), "total": np.add.reduceat(values, starts)}


def joined(left: pa.RecordBatch, right: pa.RecordBatch) -> dict[str, Any]:
    return {
        "most": pc.max_element_wise(left["most"], right["most"]),
        "total": pc.add(left["total"], right["total"]),
    }


@de.per_key(output=OUTPUT)
def extremes_of_key(key: int, rows: pa.RecordBatch) -> dict[str, int]:
    values = rows["value"].to_numpy()
    return {"most": int(values.max()), "total": int(values.sum())}


def joined_of_key(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {"most": max(one["most"], other["most"]), "total": one["total"] + other["total"]}


def own_logic(rows: int, keys: int, batch: int, runs: int) -> dict[str, Any]:
    """Return nanoseconds per row of aggregates, and of functions with a merge that compute the same."""
    batches = stream(rows, keys, 0.0)
    logics: dict[str, tuple[Any, dict[str, Any]]] = {
        "aggregates": ({"most": de.aggregate.Max("value"), "total": de.aggregate.Sum("value")}, {}),
        "per_batch": (extremes, {"merge": joined, "output": OUTPUT}),
        "per_key": (extremes_of_key, {"merge": joined_of_key}),
    }
    name = "1h every 10min"
    took = {
        level: statistics.median(measured(WINDOWS[name], batches, batch, logic, **merging)[0] for _ in range(runs))
        for level, (logic, merging) in logics.items()
    }
    return {"windows": name, "keys": keys, **{level: round(one / rows * 1e9) for level, one in took.items()}}


def measured(
    windows: Any,
    rows: pa.RecordBatch,
    batch: int | Sequence[int],
    logic: Any,
    separate: bool = False,
    **options: Any,
) -> tuple[float, Any, Windowing]:
    """Return the CPU seconds of one task, and what it has measured of its windows; `batch` is the rows of each.

    With `separate`, rows are added to instances where windows might share slices.
    """
    topology = de.Topology("corrections")
    source = topology.source("rows", de.sources.Iterable(lambda: [], event_time="at")).key_by("key")
    source.window(windows).compute(logic, name="out", **options)
    store = PrimaryState(SHARDS, lambda hashes: (hashes % SHARDS).astype(int))
    for shard in range(SHARDS):
        store.grant(shard, TASK)
    operator = topology.operator("out")
    task = WindowLogic(operator, store, store.session(TASK), SHARDS, True)
    task.clock = time.thread_time
    record = pa.record_batch({"shard": np.arange(SHARDS)})
    record = record.replace_schema_metadata({INPUT_SCHEMA: SCHEMA.serialize().to_pybytes()})
    policy = ErrorPolicy("fail", print)
    reached, step = None, operator.windowing.slice
    times, hashes = rows["at"].cast(pa.int64()).to_numpy(), hash_columns(rows, ("key",))
    began = time.thread_time()
    sizes = [batch] * -(-rows.num_rows // batch) if isinstance(batch, int) else batch
    for start, size in zip([0, *accumulate(sizes)], sizes, strict=False):
        part = slice(start, start + size)
        task.process(rows.slice(start, size), hashes[part], reached=reached, separate=separate)
        due = int(times[part].max()) // step * step
        if reached is None or due > reached:
            task.fire(SimpleNamespace(record=TimersDue(due), rows=record, reached=reached, side=None), policy)
            reached = due
    return time.thread_time() - began, store.costs(), operator.windowing


def compared(name: str, rows: int, keys: int, batch: int, late: float, runs: int) -> dict[str, Any]:
    """Return what both plans take for one setting."""
    batches = stream(rows, keys, late)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    costs, windowing = None, None
    for _ in range(runs):
        for share in (True, False):
            options = {"share": share, "allowed_lateness": LATENESS}
            took, found, its = measured(WINDOWS[name], batches, batch, AGGREGATES, **options)
            seconds[share].append(took)
            if share:
                costs, windowing = found, its
    assert windowing is not None
    slices, instances = (statistics.median(seconds[share]) for share in (True, False))
    found = measured_costs([PartMeasure(None, costs)])
    assert found.keys is not None
    load = window_load(rows / HOURS / 3600, found.keys, found.units, found.other, found.corrected, found.lookups)
    plan = plan_windows(windowing, load)
    assert plan.shared is not None
    assert plan.separate is not None
    return {
        "windows": name,
        "keys": keys,
        "late": late,
        "corrected_per_row": round(found.corrected, 4),
        "us_per_correction": None if found.units.correction is None else round(found.units.correction * 1e6, 2),
        "slices_ns_per_row": round(slices / rows * 1e9),
        "instances_ns_per_row": round(instances / rows * 1e9),
        "ratio": round(instances / slices, 2),
        "predicted_ratio": round(plan.separate / plan.shared, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--late", type=float, nargs="+", default=[0.0, 0.01, 0.1])
    parser.add_argument("--only", choices=["corrections", "own-logic"])
    chosen = parser.parse_args()
    if chosen.only != "corrections":
        for keys in chosen.keys:
            print(json.dumps(own_logic(chosen.rows, keys, chosen.batch, chosen.runs)), flush=True)
    if chosen.only == "own-logic":
        return
    for name in WINDOWS:
        for keys in chosen.keys:
            for late in chosen.late:
                print(json.dumps(compared(name, chosen.rows, keys, chosen.batch, late, chosen.runs)), flush=True)


if __name__ == "__main__":
    main()
