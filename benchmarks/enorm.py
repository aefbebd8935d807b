"""The simple job of Enorm: consolidation (figure 9), migration (10 and 12), and changes of the plan (11).

Prints one JSON line per setting. Rows are counted and summed per key over windows of 5, 10, ... minutes, in an hour of
event time; nothing is emulated.

- `9`: rows per second and CPU time per row with 1, 2 and 6 windows, by the number of keys. *shared* and *separate* are
  one component, with partial results of slices or with a state for each instance; *split* are two components as in the
  paper: one makes results per minute, which the other one consolidates into windows. The order of the ways alternates,
  and the median of the rows per second counts, and the least CPU time, to which other load only adds. *ratio* is how
  many times as much CPU time separate states took as shared ones, and *predicted* what the cost model says by the costs
  that the job with shared ones measured (E, K, those of merges); *..._of_the_other_plan* are the predictions of each
  plan from a run of the other one, divided by what it took.
- `10`: for how long the rows of a shard wait that moves to another process, by the bytes of its state.
- `11`: a running job whose windows cease to share slices (combine), and begin to again (split): the seconds of the
  command, those until no partial result of the former kind is left, the event time of that, and the latency of rows in
  the ten seconds before the first change and before the end.
- `12`: how much more CPU time a job takes of which a share of the shards moves to the other process, once.

    python benchmarks/enorm.py [--figure 9 10 11 12] [--rows 2000000] [--runs 3] [--keys 1000 30000]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _cpu import ClusterCpu
from _event_stream import emitted, event_stream, note, started, warm
from _window_model import predicted, window_parts
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.runtime.protocol.job_calls import Wait
from dask_elastic.windows.unit_costs import PartMeasure

BATCH_ROWS = 16_384
SECONDS = 3600
"""Event time of a job."""

SHARDS = 64
SETS = {count: [f"{5 * number}min" for number in range(1, count + 1)] for count in (1, 2, 6)}
"""The windows of figure 9."""

AGGREGATES = {"rows": agg.Count(), "total": agg.Sum("value")}
AGAIN = {"rows": agg.Sum("rows"), "total": agg.Sum("total")}


def simple_job(
    total: int, keys: int, windows: Sequence[str], way: str, rate: float | None = None, **options: Any
) -> de.Topology:
    """Return the paper's simple job: one component, or split into two."""
    topology = de.Topology("simple")
    read = functools.partial(event_stream, total, BATCH_ROWS, total / SECONDS, keys=keys)
    rows = topology.source("rows", de.sources.Iterable(read, event_time="at", rate=rate)).key_by("key")
    if way == "split":
        minutes = rows.window("1min").compute(AGGREGATES, name="minutes", **options)
        results = minutes.key_by("key").window(list(windows)).compute(AGAIN, name="windows")
    else:
        # A single window has no instances that overlap, and nothing to share.
        share = "auto" if len(windows) == 1 or way == "auto" else way == "shared"
        results = rows.window(list(windows)).compute(AGGREGATES, name="windows", share=share, **options)
    results.sink(de.sinks.Call(note))
    return topology


def timed(client: Client, topology: de.Topology, keys: int) -> tuple[float, float, list[PartMeasure]]:
    """Run a job; returns its seconds from the first row on, the CPU seconds of the workers, and what it measured."""
    client.run(warm, BATCH_ROWS, keys)
    used = ClusterCpu(client)
    job = de.submit(topology, client)
    job.wait(progress=False)
    cpu = used.seconds()
    began = max(client.run(started).values())
    took = job._describe().ended - began
    parts = window_parts(job, "windows")
    job.forget()
    return took, cpu, parts


def consolidation(client: Client, total: int, runs: int, keys: int) -> Iterator[dict[str, Any]]:
    """Yield the lines of figure 9."""
    # CPU time that a job takes with hardly any rows is left out.
    empty = min(timed(client, simple_job(BATCH_ROWS, keys, SETS[1], "shared"), keys)[1] for _ in range(3))
    for count, windows in SETS.items():
        ways = ("shared", "split") if count == 1 else ("shared", "separate", "split")
        taken: dict[str, list[tuple[float, float, list[PartMeasure]]]] = {way: [] for way in ways}
        for number in range(runs + 1):
            for way in ways if number % 2 else reversed(ways):
                taken[way].append(timed(client, simple_job(total, keys, windows, way), keys))
                counted = sum(rows for _, rows in client.run(emitted).values())
                assert counted == total * count, f"{way}: {counted} rows in results, not {total * count}"
        cpu = {way: min(spent for _, spent, _ in found[1:]) - empty for way, found in taken.items()}
        line: dict[str, Any] = {"figure": 9, "windows": count, "keys": keys, "rows": total, "runs": runs}
        for way, found in taken.items():
            line[f"{way}_rows_per_s"] = round(total / statistics.median(took for took, _, _ in found[1:]))
            line[f"{way}_cpu_ns_per_row"] = round(cpu[way] / total * 1e9)
        if "separate" in ways:
            windowing = simple_job(total, keys, windows, "shared").operator("windows").windowing
            plans = {way: predicted(windowing, *best(taken[way][1:], empty), SECONDS) for way in ("shared", "separate")}
            shared = (plans["separate"].shared or 0.0) * SECONDS
            separate = (plans["shared"].separate or 0.0) * SECONDS
            line |= {
                "ratio": round(cpu["separate"] / cpu["shared"], 2),
                "predicted": round(separate / cpu["shared"], 2),
                "separate_of_the_other_plan": round(separate / cpu["separate"], 2),
                "shared_of_the_other_plan": round(shared / cpu["shared"], 2),
            }
        yield line


def best(found: list[tuple[float, float, list[PartMeasure]]], empty: float) -> tuple[list[PartMeasure], float]:
    """Return what the run with the least CPU time measured, and this time."""
    _, spent, parts = min(found, key=lambda one: one[1])
    return parts, spent - empty


def migrated(client: Client, seconds: float, rate: float, keys: int, share: float) -> dict[str, Any]:
    """Run a job of two tasks in two processes, and move a share of the shards to the second one half-way."""
    total = int(seconds * rate) // BATCH_ROWS * BATCH_ROWS
    client.run(warm, BATCH_ROWS, keys)
    used = ClusterCpu(client)
    topology = simple_job(total, keys, SETS[6], "shared", rate, executors=1, shards=SHARDS)
    # No balancing: only the requested moves are measured.
    job = de.submit(topology, client, cores={"windows": 1}, balance_interval="1h", light_load=0)
    home = job.assignment()["home"].iloc[0]
    job.set_cores("windows", {home: 1, next(node for node in client.nthreads() if node != home): 1})
    placed = job.assignment()
    target = int(placed.loc[placed["remote"], "task"].iloc[0])
    near = placed.loc[~placed["remote"], "shards"].iloc[0]
    while (state := job.metrics())["rows"].sum() < total / 2:
        job._ask(Wait(job.name, 0.1))
    for shard in near[: round(share * SHARDS)]:
        job.move_shard("windows", shard, target)
    job.wait(progress=False)
    cpu = used.seconds()
    moves = job.moves()
    job.forget()
    nbytes = state["state_bytes"].sum() / SHARDS
    return {"cpu": cpu, "pauses": moves["pause"].to_numpy(), "bytes": nbytes, "rows": total}


def pauses(client: Client, seconds: float, rate: float, keys: int, runs: int) -> dict[str, Any]:
    """Return the line of figure 10 for a number of keys."""
    found = [migrated(client, seconds, rate, keys, 0.25) for _ in range(runs)]
    pause = np.concatenate([one["pauses"] for one in found]) * 1e3
    return {
        "figure": 10,
        "migration": "labelled",
        "keys": keys,
        "moves": len(pause),
        "state_bytes_per_shard": round(statistics.median(one["bytes"] for one in found)),
        "pause_p50_ms": round(float(np.quantile(pause, 0.5)), 2),
        "pause_p99_ms": round(float(np.quantile(pause, 0.99)), 2),
    }


def overhead(client: Client, seconds: float, rate: float, keys: int, runs: int) -> Iterator[dict[str, Any]]:
    """Yield the lines of figure 12; the shares alternate."""
    rounds = [
        {share: migrated(client, seconds, rate, keys, share) for share in (0.0, 0.25, 0.5, 1.0)} for _ in range(runs)
    ]
    alone = statistics.median(one[0.0]["cpu"] for one in rounds)
    for share in rounds[0]:
        cpu = statistics.median(one[share]["cpu"] for one in rounds)
        yield {
            "figure": 12,
            "migration": "labelled",
            "keys": keys,
            "moved": share,
            "rows": rounds[0][share]["rows"],
            "runs": runs,
            "cpu_s": round(cpu, 2),
            "more_cpu": round(cpu / alone - 1, 3),
        }


def changed(client: Client, seconds: float, rate: float, keys: int) -> dict[str, Any]:
    """Return the line of figure 11 for a number of keys: one job that changes twice."""
    total = int(seconds * rate) // BATCH_ROWS * BATCH_ROWS
    client.run(warm, BATCH_ROWS, keys)
    # Without the window of 5 minutes, which is as long as a slice, partial results can be told apart by their lengths.
    topology = simple_job(total, keys, SETS[6][1:], "auto", rate, executors=1, shards=SHARDS)
    job = de.submit(topology, client, balance_interval="1h")
    line: dict[str, Any] = {"figure": 11, "keys": keys, "rows": total}
    for quarter, (action, partials) in enumerate({"combine": "instances", "split": "slices"}.items(), 1):
        while (before := job.metrics())["rows"].sum() < total * (2 * quarter - 1) / 4:
            job._ask(Wait(job.name, 0.05))
        line.setdefault("latency_p99_before_ms", round(before["latency_p99"].max() * 1e3, 1))
        began = time.perf_counter()
        job.share("windows", partials)
        line[f"{action}_command_ms"] = round((time.perf_counter() - began) * 1e3, 1)
        while _kinds(job) != {partials} and job.status == "running":
            job._ask(Wait(job.name, 0.05))
        line[f"{action}_complete_s"] = round(time.perf_counter() - began, 2)
        passed = job.metrics()["event_time"].min() - before["event_time"].min()
        line[f"{action}_complete_event_min"] = round(passed.total_seconds() / 60, 1)
    job.wait(progress=False)
    measured = job.metrics()
    line["latency_p99_after_ms"] = round(measured["latency_p99"].max() * 1e3, 1)
    line["state_bytes"] = int(before["state_bytes"].sum())
    job.forget()
    return line


def _kinds(job: de.Job) -> set[str]:
    """Return of what the partial results are that a job keeps."""
    state = job.state("windows").to_arrow()
    spans = pc.subtract(*(state[name].cast(pa.int64()) for name in ("window_end", "window_start"))).unique()
    return {"slices" if span == 300_000_000 else "instances" for span in spans.to_pylist()}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=int, nargs="+", choices=(9, 10, 11, 12), default=[9, 10, 11, 12])
    parser.add_argument("--rows", type=int, default=2_000_000, help="of a job of figure 9")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 30_000])
    parser.add_argument("--seconds", type=float, default=4.0, help="of a job of figures 10 to 12")
    parser.add_argument("--rate", type=float, default=200_000, help="rows per second of figures 10 to 12")
    given = parser.parse_args()
    total = given.rows // BATCH_ROWS * BATCH_ROWS
    with cluster(1, 2) as client:
        for keys in given.keys if 9 in given.figure else ():
            show(consolidation(client, total, given.runs, keys))
    with cluster(2, 1) as client:
        if 10 in given.figure:
            show(pauses(client, given.seconds, given.rate, keys, given.runs) for keys in given.keys)
        if 11 in given.figure:
            show(changed(client, 3 * given.seconds, given.rate, keys) for keys in given.keys)
        if 12 in given.figure:
            show(overhead(client, given.seconds, given.rate, given.keys[-1], given.runs))


@contextlib.contextmanager
def cluster(processes: int, threads: int) -> Iterator[Client]:
    """Yield a client of a new cluster."""
    with (
        LocalCluster(n_workers=processes, threads_per_worker=threads, dashboard_address=None) as made,
        Client(made) as client,
    ):
        yield client


def show(lines: Iterable[dict[str, Any]]) -> None:
    """Print lines as they are measured."""
    for line in lines:
        print(json.dumps({"benchmark": "enorm"} | line), flush=True)


if __name__ == "__main__":
    main()
