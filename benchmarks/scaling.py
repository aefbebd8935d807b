"""A cluster that grows from one worker to four and shrinks again with the load, against one that knows the load.

A job gets rows at a rate that rises and falls in steps. Its service time, `--service` seconds a row, is *slept*, so
that two processors stand for eight. Two runs: `elastic`, with `ElasticAdaptive`, and `oracle`, whose workers start
`--lead` seconds before the step that needs them, and are retired and closed when a step needs fewer. Prints one JSON
line per run: periods of the control loop, the part of them in which the mean latency was within the target,
worker-seconds, and rows lost; then the ratios of the two.

    python benchmarks/scaling.py [--step 30] [--target 0.5] [--cooldown 10] [--rates 60 240 400 240 60]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import pyarrow as pa
from _emulated import serve
from distributed import Client, LocalCluster

import dask_elastic as de

KEYS = 64
THREADS = 2
MOST = 4
BATCHES_PER_SECOND = 10
FULLEST = 0.7
"""Part of its time for which a slot may be busy, as `ElasticAdaptive` assumes."""


def counted(service: float, key: int, rows: pa.RecordBatch, state: Any) -> None:
    """Count the rows of a key, after their service time."""
    serve(rows.num_rows, service)
    state["rows"] = state.get("rows", 0) + rows.num_rows


def topology_of(service: float) -> de.Topology:
    """Return the topology: a slow count per key."""
    topology = de.Topology("scaling")
    rows = topology.source("rows", de.sources.Push(pa.schema({"key": pa.int64()})))
    logic = de.per_key(functools.partial(counted, service))
    rows.key_by("key").compute(logic, state={"rows": pa.int64()}, name="slow", executors=MOST)
    return topology


def needed(rate: float, service: float) -> int:
    """Return the workers that a rate needs."""
    return min(MOST, max(1, math.ceil(rate * service / FULLEST / THREADS)))


def scale(cluster: LocalCluster, client: Client, workers: int) -> None:
    """Start workers, or retire and close those that started last."""
    names = sorted(cluster.plan)
    if workers > len(names):
        cluster.scale(workers)
        return
    addresses = {info["name"]: address for address, info in client.scheduler_info(n_workers=-1)["workers"].items()}
    leaving = [name for name in names[workers:] if name in addresses]
    if leaving:
        de.retire([addresses[name] for name in leaving], client, timeout="1 minute", close=True)
        cluster.sync(cluster.scale_down, leaving)


@contextmanager
def planned(cluster: LocalCluster, client: Client, given: argparse.Namespace) -> Iterator[None]:
    """Scale a cluster at the times at which the load changes."""
    began = time.monotonic()
    sizes = [needed(rate, given.service) for rate in given.rates]

    def run() -> None:
        for step, (before, after) in enumerate(itertools.pairwise(sizes), 1):
            at = began + step * given.step - (given.lead if after > before else 0.0)
            if ended.wait(max(0.0, at - time.monotonic())):
                return
            scale(cluster, client, after)

    ended = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    yield
    ended.set()
    thread.join()


@contextmanager
def counted_workers(cluster: LocalCluster) -> Iterator[list[float]]:
    """Add up the seconds that the workers of a cluster are there."""
    total, ended = [0.0], threading.Event()

    def run() -> None:
        before = time.monotonic()
        while not ended.wait(0.1):
            now = time.monotonic()
            total[0] += len(cluster.workers) * (now - before)
            before = now

    thread = threading.Thread(target=run)
    thread.start()
    yield total
    ended.set()
    thread.join()


def send(job: de.Job, given: argparse.Namespace) -> int:
    """Send all rows when they are due; returns their number."""
    sent, began = 0, time.time()
    for step, rate in enumerate(given.rates):
        for batch in range(round(given.step * BATCHES_PER_SECOND)):
            due = began + step * given.step + batch / BATCHES_PER_SECOND
            time.sleep(max(0.0, due - time.time()))
            rows = round(rate / BATCHES_PER_SECOND)
            job.send(pa.table({"key": [(sent + row) % KEYS for row in range(rows)]}))
            sent += rows
    return sent


def run(setting: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run the load once; returns the line of the run."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=THREADS, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        if setting == "elastic":
            cluster.adapt(
                Adaptive=de.ElasticAdaptive, minimum=1, maximum=MOST, cooldown=given.cooldown, interval="500ms"
            )
        job = de.submit(topology_of(given.service), client, latency_target=given.target)
        with counted_workers(cluster) as worker_seconds:
            if setting == "oracle":
                with planned(cluster, client, given):
                    sent = send(job, given)
            else:
                sent = send(job, given)
        latencies = [one.latency for snapshot in job.snapshots() for one in snapshot.jobs if one.latency is not None]
        job.drain()
        job.wait(timeout=300, progress=False)
        rows = sum(job.state("slow").to_arrow()["rows"].to_pylist())
        within = sum(latency <= given.target for latency in latencies)
        return {
            "benchmark": "scaling",
            "run": setting,
            "periods": len(latencies),
            "within_target": round(within / len(latencies), 3),
            "worker_seconds": round(worker_seconds[0], 1),
            "lost": sent - rows,
        }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[60.0, 240.0, 400.0, 240.0, 60.0])
    parser.add_argument("--step", type=float, default=30.0, help="seconds")
    parser.add_argument("--service", type=float, default=0.013, help="seconds per row, slept")
    parser.add_argument("--target", type=float, default=0.5, help="seconds of mean latency")
    parser.add_argument("--cooldown", type=float, default=10.0, help="seconds")
    parser.add_argument("--lead", type=float, default=5.0, help="seconds for which a worker starts")
    given = parser.parse_args()
    with dask.config.set({"elastic.control-release-after": "3s", "elastic.control-cooldown": "2s"}):
        lines = {setting: run(setting, given) for setting in ("oracle", "elastic")}
    for line in lines.values():
        print(json.dumps(line), flush=True)
    oracle, elastic = lines["oracle"], lines["elastic"]
    ratios = {name: round(elastic[name] / oracle[name], 3) for name in ("within_target", "worker_seconds")}
    print(json.dumps({"benchmark": "scaling", "run": "elastic / oracle", **ratios}), flush=True)


if __name__ == "__main__":
    main()
