"""Key groups that move between executors of one core: the longest pause of a group, and the throughput meanwhile.

An operator has four executors on two workers, 64 key groups, and some 32 MB of state. A steady stream loads each
executor to a fraction ρ of its capacity (service times are emulated by sleeping, so that few cores stand for more).
Sixteen groups move from one executor to another on the other worker, and back, either one by one progressively (State
migration, section 3.2) or all at once with global synchronisation (the resource-centric baseline of Elasticutor). Both
strategies alternate within one run, with the same plan. Prints one JSON line per strategy: the longest time in which
rows of a group were not processed during a migration, for the groups that move and for the others; the longest such
time without a migration; the rows processed during a migration as a share of those that were due; and its length.

    python benchmarks/group_moves.py [--migrations 6] [--rho 0.5] [--megabytes 32] [--most 1] [--pause 1]
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
from _group_times import GROUPS, SERVICE_SECONDS, noted, take_noted
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.topology.pace import SLICE_SECONDS, rows_within

EXECUTORS = 4
SUMS = 14
KEY_BYTES = 8 * (SUMS + 2) + 8 + 21
"""Bytes of one key's state: fields, key, hashes, shard and mark."""
DISTINCT_BATCHES = 50
STRATEGIES = ("progressive", "synchronised")


def rows(rate: float, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield every key once, then random keys, uniformly, without an end."""
    random, number = np.random.default_rng(0), np.arange(keys)
    groups = (hash_columns(pa.record_batch({"key": number}), ("key",)) % GROUPS).astype(np.int64)
    size = rows_within(rate, SLICE_SECONDS, 65_536)
    drawn = [random.integers(0, keys, size) for _ in range(DISTINCT_BATCHES)]
    position = 0
    while True:
        chosen = number[position : position + size] if position < keys else drawn[position // size % DISTINCT_BATCHES]
        yield pa.record_batch({"key": chosen, "value": chosen.astype(float), "group": groups[chosen]})
        position += len(chosen)


def migrate(job: Any, groups: list[int], target: int, strategy: str, most: int) -> tuple[float, float]:
    """Move groups to an executor; returns when this began and ended."""
    began = time.time()
    size = most if strategy == "progressive" else len(groups)
    for first in range(0, len(groups), size):
        job.move_groups("per_key", groups[first : first + size], target, strategy)
    return began, time.time()


def longest(batches: list[tuple[float, int, np.ndarray]], began: float, ended: float) -> np.ndarray:
    """Return for each group the longest time between two batches with rows of it that overlaps a span, in seconds."""
    found = np.zeros(GROUPS)
    last = np.full(GROUPS, np.nan)
    for at, _, groups in batches:
        gaps = at - last[groups]
        overlaps = (at > began) & (last[groups] < ended)
        found[groups] = np.where(overlaps, np.fmax(found[groups], gaps), found[groups])
        last[groups] = at
    return found


def measured(client: Client, moves: dict[str, list[tuple[float, float]]], moving: list[int], rate: float) -> Any:
    """Yield what the strategies did to the groups."""
    batches = sorted((one for taken in client.run(take_noted).values() for one in taken), key=lambda one: one[0])
    spans = [span for listed in moves.values() for span in listed]
    others = np.setdiff1d(np.arange(GROUPS), moving)
    # Between two migrations.
    quiet = [longest(batches, end + 0.4, end + 0.8).max() for _, end in spans[:-1]]
    for strategy, listed in moves.items():
        pauses = np.array([longest(batches, *span) for span in listed]) * 1e3
        done = [sum(count for at, count, _ in batches if began <= at < ended) for began, ended in listed]
        shares = [count / (rate * (ended - began)) for count, (began, ended) in zip(done, listed, strict=True)]
        yield {
            "strategy": strategy,
            "migrations": len(listed),
            "longest_pause_ms": round(float(np.median(pauses[:, moving].max(axis=1))), 1),
            "longest_pause_of_all_ms": round(float(pauses[:, moving].max()), 1),
            "others_longest_pause_ms": round(float(np.median(pauses[:, others].max(axis=1))), 1),
            "without_migration_ms": round(float(np.median(quiet)) * 1e3, 1),
            "throughput": round(float(np.median(shares)), 3),
            "seconds": round(float(np.median([ended - began for began, ended in listed])), 3),
        }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--migrations", type=int, default=6, help="of each strategy")
    parser.add_argument("--rho", type=float, default=0.5)
    parser.add_argument("--megabytes", type=float, default=32.0, help="state of the operator")
    parser.add_argument("--most", type=int, default=1, help="groups that move at a time, progressively")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two migrations")
    given = parser.parse_args()
    keys, rate = int(given.megabytes * 1e6 / KEY_BYTES), EXECUTORS * given.rho / SERVICE_SECONDS
    topology = de.Topology("group-moves")
    source = topology.source("rows", de.sources.Iterable(functools.partial(rows, rate, keys), rate=rate))
    sums: dict[str, Any] = {f"total{number}": de.aggregate.Sum("value") for number in range(SUMS)}
    sums["noted"] = de.aggregate.Sum(noted, columns=["value", "group"])
    source.key_by("key").compute(sums, name="per_key", executors=EXECUTORS, shards=GROUPS)
    moves: dict[str, list[tuple[float, float]]] = {strategy: [] for strategy in STRATEGIES}
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster, Client(cluster) as client:
        job = de.submit(topology, client, paradigm="resource-centric", latency_target=None)
        time.sleep(2 + 2 * keys / rate)
        placed = job.assignment()
        first = placed.iloc[0]
        there = int(placed[placed["home"] != first["home"]]["executor"].iloc[0])
        moving = [int(group) for group in first["shards"]]
        client.run(take_noted)
        for number in range(given.migrations):
            for strategy in STRATEGIES if number % 2 == 0 else STRATEGIES[::-1]:
                for target in (there, 0):
                    moves[strategy].append(migrate(job, moving, target, strategy, given.most))
                    time.sleep(given.pause)
        state = float(job.metrics()["state_bytes"].sum()) / 1e6
        rho = rate / EXECUTORS / float(job.metrics()["service_rate"].mean())
        for line in measured(client, moves, moving, rate):
            print(json.dumps({"benchmark": "group-moves", "state_mb": round(state, 1), "rho": round(rho, 2), **line}))
        job.stop()


if __name__ == "__main__":
    main()
