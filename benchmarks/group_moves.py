"""Key groups that move between executors of one core: the longest pause of a group, and the throughput meanwhile.

An operator has four executors on two workers, and 64 key groups. A steady stream loads each executor to a fraction ρ of
its capacity (service times are emulated by sleeping, so that few cores stand for more); one that has all groups of
another as well has twice this load, so that with more than about half its queue grows, and moving groups wait for it.
Sixteen groups move from one
executor to another on the other worker, and back, either few at a time progressively (State migration, section 3.2) or
all at once with global synchronisation (the resource-centric baseline of Elasticutor). Both strategies alternate within
one run, with the same plan, for each size of the state.

Prints one JSON line per size and strategy, medians of the migrations: the longest pause of a group, in which rows of it
had left the source and none was processed, for the groups that move and for the others, and the median of those that
move; the longest pause without a migration; the longest time between two batches with rows of a group that moves,
which includes the time in which the source sends none (its ticks); the longest pause that the job reports, from the
first instance that sends by the next table until the state of the groups is there; the bytes that moved during pauses;
the rows processed during a migration as a share of those that were due; and its length. A line per size has the pauses
of the synchronised migrations divided by those of the progressive ones.

    python benchmarks/group_moves.py [--migrations 3] [--rho 0.25] [--service 20] [--megabytes 8 33 128 320] [--most 1]
                                     [--pause 1]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from _group_times import GROUPS, NotedBatch, noted, stamped, take_noted
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


def batch_of(chosen: np.ndarray, groups: np.ndarray) -> pa.RecordBatch:
    """Return a row for each of some keys."""
    return pa.record_batch({"key": chosen, "value": chosen.astype(float), "group": groups[chosen]})


def groups_of(keys: int) -> np.ndarray:
    """Return the group of each key."""
    return (hash_columns(pa.record_batch({"key": np.arange(keys)}), ("key",)) % GROUPS).astype(np.int64)


def every_key(keys: int) -> Iterator[pa.RecordBatch]:
    """Yield every key once, without a time."""
    groups = groups_of(keys)
    for position in range(0, keys, 4_096):
        batch = batch_of(np.arange(position, min(keys, position + 4_096)), groups)
        yield batch.append_column("left", pa.array(np.zeros(batch.num_rows)))


def rows(rate: float, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield random keys, uniformly, without an end."""
    random, groups = np.random.default_rng(0), groups_of(keys)
    drawn = [random.integers(0, keys, rows_within(rate, SLICE_SECONDS, 65_536)) for _ in range(DISTINCT_BATCHES)]
    for chosen in itertools.cycle(drawn):
        yield batch_of(chosen, groups)


class Migration(NamedTuple):
    """One migration: when it began and ended, and what the job reports of its moves."""

    began: float
    ended: float
    moves: list[Any]


def migrate(job: Any, groups: list[int], target: int, strategy: str, most: int) -> Migration:
    """Move groups to an executor."""
    began = time.time()
    size = most if strategy == "progressive" else len(groups)
    parts = [groups[first : first + size] for first in range(0, len(groups), size)]
    moved = [job.move_groups("per_key", part, target, strategy) for part in parts]
    return Migration(began, time.time(), moved)


class Longest(NamedTuple):
    """The longest pause of each group, and the longest time between two batches with rows of it, in seconds."""

    pauses: np.ndarray
    gaps: np.ndarray


def longest(batches: list[NotedBatch], began: float, ended: float) -> Longest:
    """Return the longest pauses that overlap a span."""
    pauses, gaps = np.zeros(GROUPS), np.zeros(GROUPS)
    last = np.full(GROUPS, np.nan)
    for at, _, groups, left in batches:
        for found, since in ((pauses, np.fmax(last[groups], left)), (gaps, last[groups])):
            overlaps = (at > began) & (since < ended)
            found[groups] = np.where(overlaps, np.fmax(found[groups], at - since), found[groups])
        last[groups] = at
    return Longest(pauses, gaps)


def measured(
    client: Client, migrations: dict[str, list[Migration]], moving: list[int], rate: float
) -> dict[str, dict[str, Any]]:
    """Return what each strategy did to the groups."""
    batches = sorted((one for taken in client.run(take_noted).values() for one in taken), key=lambda one: one.at)
    others = np.setdiff1d(np.arange(GROUPS), moving)
    everything = sorted((one for listed in migrations.values() for one in listed), key=lambda one: one.began)
    # Between two migrations.
    quiet = [longest(batches, one.ended + 0.4, one.ended + 0.8).pauses.max() for one in everything[:-1]]
    found = {}
    for strategy, listed in migrations.items():
        spans = [longest(batches, one.began, one.ended) for one in listed]
        pauses, gaps = (np.array([one[part] for one in spans]) for part in (0, 1))
        seconds = np.array([one.ended - one.began for one in listed])
        done = [sum(batch.rows for batch in batches if one.began <= batch.at < one.ended) for one in listed]
        found[strategy] = {
            "strategy": strategy,
            "migrations": len(listed),
            "longest_pause_ms": milliseconds(np.median(pauses[:, moving].max(axis=1))),
            "longest_pause_of_all_ms": milliseconds(pauses[:, moving].max()),
            "median_pause_ms": milliseconds(np.median(pauses[:, moving])),
            "others_longest_pause_ms": milliseconds(np.median(pauses[:, others].max(axis=1))),
            "without_migration_ms": milliseconds(np.median(quiet)),
            "longest_gap_ms": milliseconds(np.median(gaps[:, moving].max(axis=1))),
            "reported_pause_ms": milliseconds(np.median([max(m.pause for m in one.moves) for one in listed])),
            "median_reported_pause_ms": milliseconds(np.median([m.pause for one in listed for m in one.moves])),
            "moved_mb": round(float(np.median([sum(m.nbytes for m in one.moves) for one in listed])) / 1e6, 2),
            "paused_mb": round(float(np.median([sum(m.paused_bytes for m in one.moves) for one in listed])) / 1e6, 3),
            "throughput": round(float(np.median(np.array(done) / (rate * seconds))), 3),
            "seconds": round(float(np.median(seconds)), 3),
        }
    return found


def milliseconds(seconds: Any) -> float:
    """Return seconds in milliseconds, rounded."""
    return round(float(seconds) * 1e3, 1)


def compared(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the pauses of synchronised migrations divided by those of progressive ones."""
    progressive, synchronised = (found[strategy] for strategy in STRATEGIES)
    names = ("longest_pause", "median_pause", "longest_gap", "reported_pause", "median_reported_pause")
    return {f"{name}_ratio": round(synchronised[f"{name}_ms"] / progressive[f"{name}_ms"], 1) for name in names}


def run(client: Client, given: argparse.Namespace, megabytes: float) -> None:
    """Measure both strategies with state of one size, and print."""
    service = given.service * 1e-6
    keys, rate = int(megabytes * 1e6 / KEY_BYTES), EXECUTORS * given.rho / service
    topology = de.Topology(f"group-moves-{megabytes:g}")
    source = topology.source("rows", de.sources.Iterable(functools.partial(rows, rate, keys), rate=rate))
    sums: dict[str, Any] = {f"total{number}": de.aggregate.Sum("value") for number in range(SUMS)}
    sums["noted"] = de.aggregate.Sum(functools.partial(noted, service=service), columns=["value", "group", "left"])
    first_rows = topology.source("keys", de.sources.Iterable(functools.partial(every_key, keys)))
    keyed = source.map(stamped).union(first_rows).key_by("key")
    keyed.compute(sums, name="per_key", executors=EXECUTORS, shards=GROUPS)
    migrations: dict[str, list[Migration]] = {strategy: [] for strategy in STRATEGIES}
    job = de.submit(topology, client, paradigm="resource-centric", latency_target=None)
    while not job.metrics()["rows"].sum() > keys + rate:
        time.sleep(0.2)
    # Until processing times of the first rows count no more.
    time.sleep(2.0)
    placed = job.assignment()
    first = placed.iloc[0]
    there = int(placed[placed["home"] != first["home"]]["executor"].iloc[0])
    moving = [int(group) for group in first["shards"]]
    # Once there and back before, so that both executors have memory for the groups.
    for target in (there, 0):
        migrate(job, moving, target, "synchronised", len(moving))
        time.sleep(given.pause)
    client.run(take_noted)
    for number in range(given.migrations):
        for strategy in STRATEGIES if number % 2 == 0 else STRATEGIES[::-1]:
            for target in (there, 0):
                migrations[strategy].append(migrate(job, moving, target, strategy, given.most))
                time.sleep(given.pause)
    state = float(job.metrics()["state_bytes"].sum()) / 1e6
    rho = rate / EXECUTORS / float(job.metrics()["service_rate"].mean())
    what = {"benchmark": "group-moves", "state_mb": round(state, 1), "rho": round(rho, 2)}
    found = measured(client, migrations, moving, rate)
    for line in (*found.values(), compared(found)):
        print(json.dumps({**what, **line}), flush=True)
    job.stop()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--migrations", type=int, default=3, help="of each strategy, there and back")
    parser.add_argument("--rho", type=float, default=0.25)
    parser.add_argument("--service", type=float, default=20.0, help="microseconds of each row")
    parser.add_argument(
        "--megabytes", type=float, nargs="*", default=[8.0, 33.0, 128.0, 320.0], help="state, each size"
    )
    parser.add_argument("--most", type=int, default=1, help="groups that move at a time, progressively")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two migrations")
    given = parser.parse_args()
    for megabytes in given.megabytes:
        with (
            LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            run(client, given, megabytes)


if __name__ == "__main__":
    main()
