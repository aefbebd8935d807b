"""Windowed counts and sums of 10,000 keys, compared with bare loops; and what it saves that windows share slices.

Prints one JSON line per window: the engine's and the bare loops' rows per second (medians of the runs, which
alternate), their ratios, and the CPU time per row, which depends less on what else the machine does. The bare loops run
in two threads. "groupby" is what most would write with pandas; "factorize" keeps arrays by key, as an expert would;
both do not know the keys, and have the engine's results. "lean" is given the number of keys, uses the engine's hash
index, and does not bring the results of its two threads together. Then, for windows of 5, 10, 15 and 20 minutes over an
hour of event time: the CPU seconds of one compute with slices, of one with a state for each instance, and of four
computes, beside the ratio that the cost model predicts by the costs that the job with slices has measured.

    python benchmarks/windows.py [--rows 10000000] [--runs 5] [--batch 65536] [--only tumbling|hopping|sharing]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from typing import Any

from _event_stream import (
    FactorizedWindows,
    GroupbyWindows,
    bare_windows,
    emitted,
    event_stream,
    lean_windows,
    note,
    started,
    warm,
)
from _window_model import predicted, window_parts
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic import windows
from dask_elastic.windows.unit_costs import PartMeasure

PER_SECOND = 100_000
"""Rows per second of event time of the tumbling and the hopping window."""

WINDOWS = {
    "tumbling": (windows.tumbling("10s"), 1, 10_000_000),
    "hopping": (windows.hopping("10s", "1s"), 10, 1_000_000),
}
"""The windows; slices of an instance and the microseconds of a slice in the bare loop."""

MINUTES = ("5min", "10min", "15min", "20min")
AGGREGATES = {"rows": de.aggregate.Count(), "total": de.aggregate.Sum("value")}


def windowed(total: int, rows: int, per_second: float, given: list[Any], **options: Any) -> de.Topology:
    """Return a topology with a compute for each element of `given`."""
    topology = de.Topology("windows")
    read = functools.partial(event_stream, total, rows, per_second)
    stream = topology.source("stream", de.sources.Iterable(read, event_time="at"))
    for number, one in enumerate(given):
        results = stream.key_by("key").window(one).compute(AGGREGATES, name=f"windows-{number}", **options)
        results.sink(de.sinks.Call(note))
    return topology


def engine(client: Client, topology: de.Topology, rows: int) -> tuple[float, float, tuple[int, int], list[PartMeasure]]:
    """Run a topology; returns its seconds, the CPU seconds of its worker, what it emitted, and what it measured."""
    client.run(warm, rows)
    (cpu,) = client.run(time.process_time).values()
    job = de.submit(topology, client)
    job.wait(progress=False)
    (spent,) = client.run(time.process_time).values()
    (began,) = client.run(started).values()
    took = job._describe().ended - began
    (found,) = client.run(emitted).values()
    parts = window_parts(job, "windows-0")
    job.forget()
    return took, spent - cpu, found, parts


def throughput(client: Client, name: str, total: int, rows: int, runs: int) -> dict[str, Any]:
    """Compare one window with the bare loops."""
    window, slices, slice_us = WINDOWS[name]
    loops = {
        "groupby": functools.partial(bare_windows, GroupbyWindows),
        "factorize": functools.partial(bare_windows, FactorizedWindows),
        "lean": lean_windows,
    }
    measured: dict[str, list[float]] = {side: [] for side in ("engine", *loops)}
    cpu: dict[str, list[float]] = {side: [] for side in ("engine", *loops)}
    for _ in range(runs + 1):
        took, spent, found, _ = engine(client, windowed(total, rows, PER_SECOND, [window]), rows)
        measured["engine"].append(total / took)
        cpu["engine"].append(spent)
        for side, loop in loops.items():
            begun = time.process_time()
            measured[side].append(loop(total, rows, PER_SECOND, slices, slice_us))
            cpu[side].append(time.process_time() - begun)
            assert side == "lean" or emitted() == found
    medians = {side: statistics.median(values[1:]) for side, values in measured.items()}
    return {
        "window": str(window),
        "results": found[0],
        **{f"{side}_rows_per_s": round(median) for side, median in medians.items()},
        **{f"to_{side}": round(medians["engine"] / medians[side], 3) for side in loops},
        **{f"{side}_cpu_ns_per_row": round(statistics.median(spent[1:]) / total * 1e9) for side, spent in cpu.items()},
        **{f"all_{side}": [round(value) for value in values[1:]] for side, values in measured.items()},
    }


def sharing(client: Client, total: int, rows: int, runs: int) -> dict[str, Any]:
    """Compare the ways to compute four windows, and one window."""
    per_second = total / 3600
    make = functools.partial(windowed, total, rows, per_second)
    ways = {
        "slices": make([list(MINUTES)]),
        "instances": make([list(MINUTES)], share=False),
        "four_computes": make([*MINUTES]),
    }
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    windowing = ways["slices"].operator("windows-0").windowing
    assert windowing is not None
    found = []
    for _ in range(runs + 1):
        for way, topology in ways.items():
            _, spent, (_, counted), parts = engine(client, topology, rows)
            assert counted == total * 4
            cpu[way].append(spent)
            if way == "slices":
                found.append((spent, parts))
    # Other load on the machine only adds to the CPU time.
    seconds = {way: min(values[1:]) for way, values in cpu.items()}
    spent, parts = min(found[1:], key=lambda one: one[0])
    plan = predicted(windowing, parts, spent, 3600)
    assert plan.separate is not None
    return {
        "windows": MINUTES,
        **{f"{way}_cpu_s": round(spent, 2) for way, spent in seconds.items()},
        "saved_to_instances": round(seconds["instances"] / seconds["slices"], 2),
        "saved_to_four_computes": round(seconds["four_computes"] / seconds["slices"], 2),
        "predicted": round(plan.separate * 3600 / seconds["slices"], 2),
        "plan": plan.partials,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--only", choices=(*WINDOWS, "sharing"), action="append")
    arguments = parser.parse_args()
    total = arguments.rows // arguments.batch * arguments.batch
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for name in arguments.only or (*WINDOWS, "sharing"):
            if name == "sharing":
                found = sharing(client, total, arguments.batch, arguments.runs)
            else:
                found = throughput(client, name, total, arguments.batch, arguments.runs)
            common = {"benchmark": "windows", "rows": total, "batch_rows": arguments.batch, "runs": arguments.runs}
            print(json.dumps(common | found), flush=True)


if __name__ == "__main__":
    main()
