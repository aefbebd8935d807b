"""The CPU time of windows with updates by plan, and what the cost model chooses by what either plan has measured.

With `--emit closed`, that of windows without updates, for example with more keys than fit the processor's caches. With
`--late`, so many of the rows are older, by up to the frequency of their windows, which is the allowed lateness.

Prints one JSON line per setting: milliseconds of one task per batch with each plan (adding rows, results of open
instances, closing), the share of the updates in the first, the ratio that the cost model predicts by the measures of
each plan beside the real one, and how many times the time of the better plan its choice takes, in the worse case.
The task adds counts and sums without an executor around it. Runs alternate between the plans; medians.

    python benchmarks/updates.py [--runs 3] [--rows 300 3000 30000] [--keys 1 100 1000 10000] [--batches 40]
        [--emit updates|closed] [--late 0.0] [--windows "20s every 10s" ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from corrections import AGGREGATES, SCHEMA, SECOND, measured

import dask_elastic as de
from dask_elastic.topology.windowing import Emit, Windowing
from dask_elastic.vocab.window_costs import WindowCosts
from dask_elastic.windows.unit_costs import PartMeasure, measured_costs
from dask_elastic.windows.window_plan import WindowPlan, plan_windows, window_load

WINDOWS: dict[str, tuple[Any, float, int]] = {
    "20s every 10s": (de.windows.hopping("20s", "10s"), 2, 10),
    "1min every 10s": (de.windows.hopping("1min", "10s"), 2, 10),
    "1h every 1min": (de.windows.hopping("1h", "1min"), 12, 60),
    "5, 10, 15, 20min": (["5min", "10min", "15min", "20min"], 60, 300),
}
"""Windows, the seconds of event time that a batch has, and those by which late rows are older at most."""


def stream(
    rows: int, batches: int, keys: int, seconds: float, late: float = 0.0, lateness: int = 0
) -> tuple[pa.RecordBatch, list[int]]:
    """Return rows in the order of time, and how many each batch has: half as many to half as many more."""
    random = np.random.default_rng(7)
    sizes = random.integers(rows // 2, rows + rows // 2, batches, endpoint=True)
    count = int(sizes.sum())
    times = np.sort(random.integers(0, round(seconds * SECOND * batches), count))
    columns = [random.integers(0, keys, count), random.integers(0, 100, count)]
    if late:
        times -= np.where(random.random(count) < late, random.integers(0, lateness * SECOND, count), 0)
    made = pa.record_batch([*map(pa.array, columns), pa.array(times, SCHEMA.field(2).type)], SCHEMA)
    return made, sizes.tolist()


def predicted(windowing: Windowing, costs: WindowCosts, seconds: float) -> WindowPlan:
    """Return both plans by what one has measured within some seconds of event time."""
    found = measured_costs([PartMeasure(None, costs)])
    assert found.keys is not None
    rates = found.corrected, found.lookups
    return plan_windows(windowing, window_load(found.rows / seconds, found.keys, found.units, found.other, *rates))


def compared(
    name: str, rows: int, keys: int, batches: int, runs: int, emit: Emit = "updates", late: float = 0.0
) -> dict[str, Any]:
    """Return what both plans take for one setting."""
    windows, seconds, lateness = WINDOWS[name]
    batch, sizes = stream(rows, batches, keys, seconds, late, lateness)
    policies: dict[str, Any] = {"emit": emit, "allowed_lateness": float(lateness) if late else 0}
    took: dict[bool, list[float]] = {True: [], False: []}
    plans: dict[bool, WindowPlan] = {}
    costs: dict[bool, WindowCosts] = {}
    for _ in range(runs):
        for share in took:
            cpu, costs[share], windowing = measured(windows, batch, sizes, AGGREGATES, separate=not share, **policies)
            took[share].append(cpu)
            plans[share] = predicted(windowing, costs[share], seconds * batches)
    slices, instances = (statistics.median(took[share]) for share in (True, False))
    ratios = {share: _ratio(plan) for share, plan in plans.items()}
    found = costs[True]
    return {
        "windows": name,
        "rows": rows,
        "keys": keys,
        "slices_ms": round(slices / batches * 1e3, 2),
        "instances_ms": round(instances / batches * 1e3, 2),
        "updating": round(found.updating / slices, 2),
        "corrections_per_row": round(found.corrections / found.rows, 3),
        "us_per_correction": round(found.correcting / max(found.corrections, 1.0) * 1e6, 2),
        "ns_per_lookup": round(found.consolidating / max(found.looked, 1.0) * 1e9),
        "ratio": round(instances / slices, 2),
        "by_slices": round(ratios[True], 2),
        "by_instances": round(ratios[False], 2),
        "loss": round(loss(slices, instances, list(plans.values())), 2),
    }


def loss(slices: float, instances: float, plans: Sequence[WindowPlan]) -> float:
    """Return how many times the time of the better plan the worst choice takes."""
    chosen = [slices if plan.partials == "slices" else instances for plan in plans]
    return max(chosen) / min(slices, instances)


def _ratio(plan: WindowPlan) -> float:
    assert plan.shared is not None
    assert plan.separate is not None
    return plan.separate / plan.shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 3_000, 30_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 100, 1_000, 10_000])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--emit", choices=["updates", "closed"], default="updates")
    parser.add_argument("--late", type=float, default=0.0)
    parser.add_argument("--windows", nargs="+", choices=list(WINDOWS), default=list(WINDOWS))
    given = parser.parse_args()
    for name in given.windows:
        for rows in given.rows:
            for keys in given.keys:
                found = compared(name, rows, keys, given.batches, given.runs, given.emit, given.late)
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
