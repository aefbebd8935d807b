"""Cost of `job.send`: time of a call, calls per second until the source has the rows, and latency to the sink.

The program sends batches of some rows to a `sources.Push`: first as fast as it can, then at a steady pace, each batch
with the time at which it was due. A sink on the worker measures the latency from then. Runs over the ways that
rows can take, alternately: straight to the worker, through the scheduler, and straight to the worker of a job with
checkpoints: one that makes rows durable ("spool"), and one that does not, where a program that needs to know that its
rows are safe takes a checkpoint ("checkpoint"). Prints one JSON line per way and size; medians of the runs.

    python benchmarks/send.py [--runs 5] [--calls 2000] [--rows 1 100 10000] [--pace 500] [--ways direct spool]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa
from _late_rows import NEVER, note, taken_late
from distributed import Client, LocalCluster

import dask_elastic as de

SCHEMA = pa.schema({"key": pa.int64(), "value": pa.float64()})
WAYS = {"direct": None, "scheduler": False, "spool": None, "checkpoint": None}
SAFE_CALLS = 100


def batch(rows: int, due: float = NEVER) -> pa.RecordBatch:
    """Return a batch whose rows carry their due time."""
    return pa.record_batch({"key": np.arange(rows), "value": np.full(rows, due)}, schema=SCHEMA)


def submitted(client: Client, way: str, folder: str) -> de.Job:
    """Return a running job that passes pushed rows to `note`."""
    topology = de.Topology("send")
    source = de.sources.Push(SCHEMA, replay="at-most-once" if way == "checkpoint" else None)
    topology.source("rows", source).sink(de.sinks.Call(note), name="out")
    return de.submit(topology, client, checkpoint=folder if way in ("spool", "checkpoint") else None)


def safe(job: de.Job, way: str, rows: int) -> tuple[float, float]:
    """Return p50 and p99 of the seconds until the sender knows that no restart loses its rows."""
    sent, each = batch(rows), []
    for _ in range(SAFE_CALLS):
        start = time.perf_counter()
        job.send(sent, wait=True)
        if way == "checkpoint":
            job.checkpoint()
        each.append(time.perf_counter() - start)
    return float(np.quantile(each, 0.5)), float(np.quantile(each, 0.99))


def burst(job: de.Job, rows: int, calls: int) -> tuple[float, float]:
    """Send without pause; return seconds of the median call, and calls per second until the source has the rows."""
    sent = batch(rows)
    job.send(sent, wait=True)
    each = []
    began = time.perf_counter()
    for _ in range(calls):
        start = time.perf_counter()
        job.send(sent)
        each.append(time.perf_counter() - start)
    job.flush()
    return statistics.median(each), calls / (time.perf_counter() - began)


def paced(client: Client, job: de.Job, rows: int, calls: int, pace: float) -> tuple[float, float, float]:
    """Send at a steady pace; return seconds of the median call, and p50 and p99 of the latency to the sink."""
    client.run(taken_late)
    each = []
    began = time.time() + 0.1
    for number in range(calls):
        due = began + number / pace
        time.sleep(max(0.0, due - time.time()))
        sent = batch(rows, due)
        start = time.perf_counter()
        job.send(sent, due=due)
        each.append(time.perf_counter() - start)
    job.end_of_input()
    job.wait(progress=False)
    late = [seconds for found in client.run(taken_late).values() for seconds in found]
    return statistics.median(each), float(np.quantile(late, 0.5)), float(np.quantile(late, 0.99))


def measure(cluster: LocalCluster, way: str, rows: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one run, in milliseconds."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Client(cluster, direct_to_workers=WAYS[way], set_as_default=False) as client,
    ):
        job = submitted(client, way, folder)
        known, known_p99 = safe(job, way, rows)
        busy, per_second = burst(job, rows, arguments.calls)
        steady, p50, p99 = paced(client, job, rows, arguments.calls, arguments.pace)
        job.forget()
    return {
        "call_ms": busy * 1e3,
        "calls_per_s": per_second,
        "paced_call_ms": steady * 1e3,
        "p50_ms": p50 * 1e3,
        "p99_ms": p99 * 1e3,
        "waited_ms": known * 1e3,
        "waited_p99_ms": known_p99 * 1e3,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 100, 10_000])
    parser.add_argument("--pace", type=float, default=500.0, help="calls per second of the steady part")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    arguments = parser.parse_args()
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        for rows in arguments.rows:
            found: dict[str, list[dict[str, float]]] = {way: [] for way in arguments.ways}
            for _ in range(arguments.runs):
                for way in arguments.ways:
                    found[way].append(measure(cluster, way, rows, arguments))
            for way, runs in found.items():
                print(json.dumps(_line(way, rows, runs)), flush=True)


def _line(way: str, rows: int, runs: list[dict[str, float]]) -> dict[str, Any]:
    middle = functools.partial(_median, runs)
    figures = {name: middle(name) for name in runs[0]}
    return {"benchmark": "send", "way": way, "rows": rows, "runs": len(runs), **figures}


def _median(runs: list[dict[str, float]], name: str) -> float:
    return round(statistics.median(run[name] for run in runs), 3)


if __name__ == "__main__":
    main()
