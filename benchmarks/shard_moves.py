"""How long a shard move pauses its shard, and what the other shards notice of it.

An executor of two tasks keeps 32 KiB of state a shard. A steady stream loads it to a fraction ρ of its measured
capacity (service times are emulated by sleeping, so that two cores stand for as many as are needed), while shards
move all the time: within the node, or to a remote task and back. One JSON line a setting: p50 and p99 of the pauses,
and the p99 latency of the stream with and without moves, from runs that alternate.

    python benchmarks/shard_moves.py [--seconds 12] [--runs 5]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de

SHARDS = 64
KEYS_PER_SHARD = 600
SERVICE_SECONDS = 20e-6
INBOX = 0.005
MOVE_SECONDS = 0.02
"""A move begins about so long after the one before."""


def rows(number: int, seed: int) -> pa.RecordBatch:
    """Uniform keys, so that every shard has its share of state and load."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, SHARDS * KEYS_PER_SHARD, number)
    return pa.record_batch({"key": keys, "value": rng.normal(size=number)})


def stream(seconds: float, rate: float) -> Iterator[pa.RecordBatch]:
    """First every key once, unpaced time and again short of that, then random keys."""
    yield pa.record_batch({"key": np.arange(SHARDS * KEYS_PER_SHARD), "value": np.zeros(SHARDS * KEYS_PER_SHARD)})
    for number in range(int(seconds * rate / 5_000)):
        yield rows(5_000, number % 50)


def emulated(batch: pa.RecordBatch) -> pa.Array:
    """The value column, after the service time of each row."""
    time.sleep(batch.num_rows * SERVICE_SECONDS)
    return batch["value"]


def run(client: Client, seconds: float, rate: float, across: bool, moving: bool) -> dict[str, Any]:
    """One run at so many rows per second."""
    topology = de.Topology("shard-moves")
    source = topology.source("stream", de.sources.Iterable(functools.partial(stream, seconds, rate), rate=rate))
    aggregates = {"rows": de.aggregate.Count(), "total": de.aggregate.Sum(emulated, columns=["value"])}
    source.key_by("key").compute(aggregates, name="per_key", executors=1, shards=SHARDS)
    # No balancing of its own: only the moves that are asked for are measured.
    job = de.submit(topology, client, cores={"per_key": 2}, inbox_time=INBOX, balance_interval="1h")
    if across:
        home = job.assignment()["home"][0]
        other = next(n for n in client.scheduler_info(n_workers=-1)["workers"] if n != home)
        job.set_cores("per_key", {home: 1, other: 1})
    began = time.time()
    shard = 0
    owner: dict[int, int] = {}
    tasks: list[int] = []
    while job.status == "running":
        if not moving or time.time() < began + 2:
            job._call("wait", timeout=0.2)
            continue
        if not owner:
            placed = job.assignment()
            tasks = [int(task) for task in placed["task"]]
            owner = {s: int(t) for t, shards in zip(tasks, placed["shards"], strict=True) for s in shards}
        owner[shard] = next(task for task in tasks if task != owner[shard])
        job.move_shard("per_key", shard, owner[shard])
        shard = (shard + 7) % SHARDS
        job._call("wait", timeout=MOVE_SECONDS)
    moves = job.moves()
    moves = moves[moves["ended"] > began + 2]
    measured = job.metrics().iloc[0]
    state = measured["state_bytes"] / SHARDS
    job.forget()
    pauses = moves["pause"].to_numpy() * 1e3
    return {
        "moves": len(moves),
        "across": int(moves["across_nodes"].sum()),
        "pause_p50_ms": float(np.quantile(pauses, 0.5)) if len(pauses) else None,
        "pause_p99_ms": float(np.quantile(pauses, 0.99)) if len(pauses) else None,
        "p99_ms": measured["latency_p99"] * 1e3,
        "state_bytes_per_shard": state,
        "service_rate": measured["service_rate"],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    for across in (False, True):
        with (
            LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            # What a sleep really takes is a matter of the machine and of the size of the batches that come of the
            # rate: the load is a fraction of what it gets done at about that rate.
            capacity = 2 * run(client, 5, 1 / SERVICE_SECONDS, across, moving=True)["service_rate"]
            for rho in (0.5, 0.7, 1.1):
                made = [
                    (
                        run(client, arguments.seconds, rho * capacity, across, moving=True),
                        run(client, arguments.seconds, rho * capacity, across, moving=False),
                    )
                    for _ in range(arguments.runs)
                ]
                line = {
                    "benchmark": "shard-moves",
                    "across_nodes": across,
                    "rho": rho,
                    "inbox_ms": INBOX * 1e3,
                    "capacity": round(capacity),
                }
                for name in ("moves", "across", "pause_p50_ms", "pause_p99_ms", "p99_ms", "state_bytes_per_shard"):
                    line[name] = round(statistics.median(moving[name] for moving, _ in made), 3)
                rates = [moving["service_rate"] for moving, _ in made]
                line["rho_measured"] = round(rho * capacity / 2 / statistics.median(rates), 3)
                line["p99_without_moves_ms"] = round(statistics.median(still["p99_ms"] for _, still in made), 3)
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
