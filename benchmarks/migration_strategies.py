"""Latency of rows while shards of windows move between two workers: Enorm, section 7.5 and Figure 13.

One executor has a task on each of two workers, and open windows of 50,000 keys in each shard, as in the paper.
The load of the shards of one worker rises by half, then that of the other's; meanwhile a shard moves from the worker
with more load every `--every` seconds, by each strategy. The costs are those of the engine: nothing is emulated.
Prints one JSON line for each run: moves, their pauses, and the latencies to the end of processing of the rows that are
due while shards move, and of the others. As in the paper, it is the state that makes a migration slow: `--fields`
aggregates for each key make it as large as that of a Java program.

    python benchmarks/migration_strategies.py [--seconds 24] [--runs 2] [--rate 20000] [--every 2] [--keys 50000]
        [--fields 64] [--only smooth]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from typing import Any

import numpy as np
from _skewed_rows import SHARDS, WARM_SECONDS, keyed_rows, take_latencies, timed
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.runtime.protocol.job_calls import Wait
from dask_elastic.vocab.errors import MoveRefused

STRATEGIES = ("instant", "smooth", "labelled", "disruptive", "auto")

AFFECTED = 1.0
"""Seconds after the request of a move in which the rows that are due count as due during the migration."""


def run(client: Client, strategy: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run once, and move a shard to the worker with less load every `every` seconds, then back."""
    client.run(take_latencies)
    seconds, keys = given.seconds, given.keys
    topology = de.Topology("migration-strategies")
    read = functools.partial(keyed_rows, seconds, given.rate, keys)
    source = topology.source("rows", de.sources.Iterable(read, event_time="at"))
    total = de.aggregate.Sum(timed, columns=["value", "due"])
    window = source.key_by("key").window(given.window)
    more = {f"most_{number}": de.aggregate.Max("value") for number in range(given.fields)}
    aggregates = {"rows": de.aggregate.Count(), "total": total, **more}
    window.compute(aggregates, name="per_key", executors=1, shards=SHARDS)
    # No balancing and no control: only the requested moves are measured.
    fixed = {"balance_interval": "1h", "light_load": 0, "latency_target": None}
    job = de.submit(topology, client, cores={"per_key": 2}, migration=strategy, **fixed)
    home = job.assignment()["home"][0]
    job.set_cores("per_key", dict.fromkeys(client.nthreads(), 1))
    began = time.time()
    requested, state_bytes = [], 0
    for shard in itertools.cycle(range(SHARDS)):
        pause = WARM_SECONDS if time.time() < began + WARM_SECONDS else given.every
        if job._ask(Wait(job.name, pause)).status.value != "running":
            break
        requested.append(time.time())
        _move(job, shard)
        # At the end the windows close, and their state is removed.
        state_bytes = max(state_bytes, int(job.metrics().set_index("operator").loc["per_key", "state_bytes"]))
    moves = job.moves()
    job.forget()
    found = list(client.run(take_latencies).values())
    due, waited = (np.concatenate(columns) for columns in zip(*found, strict=True))
    # The first requests come before the rows that are timed.
    starts = np.array(requested)
    after = due - starts[np.maximum(np.searchsorted(starts, due, side="right") - 1, 0)]
    late = moves[(moves["ended"] > began + WARM_SECONDS) & moves["across_nodes"]]
    moving = (after >= 0) & (after < AFFECTED)
    return {
        "strategy": strategy,
        "home": str(home),
        "moves": len(late),
        "chosen": late["strategy"].value_counts().to_dict(),
        "pause_p50_ms": float(late["pause"].median() * 1e3),
        "pause_max_ms": float(late["pause"].max() * 1e3),
        "state_mib_per_shard": state_bytes / SHARDS / 2**20,
        "moving": _latencies(waited[moving]),
        "others": _latencies(waited[~moving]),
    }


def _latencies(waited: np.ndarray) -> dict[str, float]:
    """Return the mean and quantiles of latencies in ms."""
    if not len(waited):
        return {}
    quantiles = np.quantile(waited, (0.5, 0.9, 0.99))
    found = {"mean": waited.mean(), **dict(zip(("p50", "p90", "p99"), quantiles, strict=True))}
    return {name: round(float(value) * 1e3, 2) for name, value in found.items()}


def _move(job: de.Job, shard: int) -> None:
    """Move a shard to the other worker."""
    placed = job.assignment()
    tasks = [int(task) for task in placed["task"]]
    owners = [task for task, shards in zip(tasks, placed["shards"], strict=True) if shard in shards]
    others = [task for task in tasks if task not in owners]
    if owners and others:
        try:
            job.move_shard("per_key", shard, others[0])
        except MoveRefused as error:
            print(f"skipped: {error}")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--rate", type=float, default=20_000)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between the starts of two moves")
    parser.add_argument("--keys", type=int, default=50_000, help="keys of each shard")
    parser.add_argument("--fields", type=int, default=64, help="aggregates of each key, 8 bytes each")
    parser.add_argument("--window", default="1h", help="length of the windows; smooth moves last as long")
    parser.add_argument("--only", choices=STRATEGIES)
    given = parser.parse_args()
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        for _ in range(given.runs):
            for strategy in (given.only,) if given.only else STRATEGIES:
                print(json.dumps(run(client, strategy, given)), flush=True)


if __name__ == "__main__":
    main()
