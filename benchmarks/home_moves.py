"""Pause of an executor whose home moves between two workers, and the latency of the executor that stays.

An operator has two executors with some 32 MB of state each. A steady stream loads each to a fraction ρ of a task's
capacity (service times are emulated by sleeping, so that few cores stand for more), and changes rows all over the
state. The home of the first executor moves to the other worker and back, every `--every` seconds. Runs with and without
moves alternate. Prints one JSON line per run: pauses, bytes that were copied before and during them, and the latencies
of the rows of both executors.

    python benchmarks/home_moves.py [--seconds 30] [--runs 2] [--every 2] [--rho 0.5] [--megabytes 32]
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from _timed_rows import (
    DISTINCT_BATCHES,
    MAY_MOVE,
    SERVICE_SECONDS,
    STAYS,
    WARM_SECONDS,
    emulated,
    forget_latencies,
    latencies,
)
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.meters import LatencyHistogram
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.protocol.job_calls import Wait
from dask_elastic.topology.pace import SLICE_SECONDS, rows_within

SPACE = KeySpace(2, 64)
SUMS = 14
KEY_BYTES = 8 * (SUMS + 2) + 8 + 21
"""Bytes of one key's state: fields, key, hashes, shard and mark."""


def rows(seconds: float, rate: float, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield every key once, then random keys, uniformly."""
    # First of all: the pace begins now.
    began, position = time.time(), 0
    random = np.random.default_rng(0)
    hashes = hash_columns(pa.record_batch({"key": np.arange(keys)}), ("key",))
    kinds = np.where(SPACE.executor_of(hashes) == 0, MAY_MOVE, STAYS)
    size = rows_within(rate, SLICE_SECONDS, 65_536)
    drawn = [random.integers(0, keys, size) for _ in range(DISTINCT_BATCHES)]
    first = np.arange(keys)
    warm = max(WARM_SECONDS, 2 * keys * SERVICE_SECONDS)
    while position < (warm + seconds) * rate:
        chosen = first[position : position + size] if position < keys else drawn[position // size % DISTINCT_BATCHES]
        after = position / rate
        kind = kinds[chosen] if after > warm else np.zeros(len(chosen), np.int64)
        due = np.full(len(chosen), began + after)
        yield pa.record_batch({"key": chosen, "value": chosen.astype(float), "due": due, "kind": kind})
        position += len(chosen)


def run(client: Client, seconds: float, rate: float, keys: int, every: float | None) -> dict[str, Any]:
    """Run once at a rate in rows per second; the home of the first executor moves every so many seconds, if at all."""
    client.run(forget_latencies)
    topology = de.Topology("home-moves")
    source = topology.source("rows", de.sources.Iterable(functools.partial(rows, seconds, rate, keys), rate=rate))
    sums = {f"total{number}": de.aggregate.Sum("value") for number in range(SUMS)}
    due = de.aggregate.Sum(emulated, columns=["value", "due", "kind"])
    source.key_by("key").compute(
        {"rows": de.aggregate.Count(), "due": due, **sums}, name="per_key", executors=2, shards=SPACE.shards
    )
    # No balancing and no control: only the requested moves are measured.
    job = de.submit(topology, client, cores={"per_key": 1}, balance_interval="1h", latency_target=None)
    began, wait = time.time(), max(WARM_SECONDS, 2 * keys * SERVICE_SECONDS) + 1
    workers = sorted(client.nthreads())
    while job._ask(Wait(job.name, wait)).status.value == "running":
        wait = every or 1.0
        if every is not None and time.time() < began + seconds:
            placed = job.assignment()
            here = placed[placed["executor"] == 0]["home"].iloc[0]
            job.move_executor("per_key", 0, workers[1 - workers.index(here)])
    decisions = [decision for decision in job.decisions()["homes"] if decision]
    moves = [change for homes in decisions for change in homes]
    measured = job.metrics()
    job.forget()
    return {
        "rho": round(rate / 2 / float(measured["service_rate"].mean()), 3),
        "state_mb": round(float(measured["state_bytes"].mean()) / 1e6, 1),
        **_pauses(moves),
        **_latencies(client),
    }


def _pauses(moves: list[Any]) -> dict[str, Any]:
    if not moves:
        return {"moves": 0}
    pauses = np.array([change["pause"] for change in moves]) * 1e3
    return {
        "moves": len(moves),
        "pause_p50_ms": round(float(np.quantile(pauses, 0.5)), 1),
        "pause_p99_ms": round(float(np.quantile(pauses, 0.99)), 1),
        "pauses_ms": [round(pause, 1) for pause in pauses.tolist()],
        "sent_mb": round(float(np.median([change["moved_bytes"] for change in moves])) / 1e6, 2),
        "sent_in_pause_mb": round(float(np.median([change["paused_bytes"] for change in moves])) / 1e6, 3),
    }


def _latencies(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, name in ((STAYS, "stays"), (MAY_MOVE, "moves")):
        histogram = LatencyHistogram()
        for of_worker in client.run(latencies).values():
            histogram.merge(of_worker[kind])
        for q in (50, 99):
            found[f"{name}_p{q}_ms"] = round((histogram.quantile(q / 100) or 0) * 1e3, 2)
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between the end of a move and the next one")
    parser.add_argument("--rho", type=float, default=0.5)
    parser.add_argument("--megabytes", type=float, default=32.0, help="state of each executor")
    given = parser.parse_args()
    keys = int(2 * given.megabytes * 1e6 / KEY_BYTES)
    rate = 2 * given.rho / SERVICE_SECONDS
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster, Client(cluster) as client:
        for _ in range(given.runs):
            for every in (given.every, None):
                line = run(client, given.seconds, rate, keys, every)
                print(json.dumps({"benchmark": "home-moves", **line}), flush=True)


if __name__ == "__main__":
    main()
