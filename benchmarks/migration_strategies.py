"""Latency while shards of windows move between two workers as load changes: Enorm, section 7.5 and Figure 13.

One executor has a task on each of two workers, and open windows of 50,000 keys in each shard, as in the paper.
`--fields` aggregates for each key make the state of a shard as large as that of a Java program, since it is the state
that makes a migration slow. A trial finds the rate at which the busier worker uses `--load` of a core. After a time
without changes, the load of the shards that one worker had at first rises by half, gradually, and stays; then that of
the others, and so on: the change of the paper, in two seconds for each of its minutes. Meanwhile shards move from the
task with more load to the other one: the one that evens them best. As in the paper, shards move continuously with
`instant`, and every minute or every five of the paper with `disruptive`; others follow, every minute. The costs are
those of the engine: nothing is emulated.

Prints one JSON line for each run, and the ratios to the first configuration at the end: moves, their pauses, the share
of all cores that is in use, and the latencies to the end of processing of the rows that are due in the two seconds
after the request of a move, of the others, and of all. With `--close`, windows of that length close, and the latencies
are also those of results, from the end of their window to the sink.

    python benchmarks/migration_strategies.py [--seconds 40] [--runs 2] [--load 0.7] [--rate 8000] [--keys 50000]
        [--fields 128] [--only instant:0.5 --only disruptive:10] [--close 4s]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from _skewed_rows import PLACING, SHARDS, keyed_rows, side_rates, take_latencies, timed, timed_results
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.runtime.protocol.job_calls import Wait
from dask_elastic.vocab.errors import MoveRefused

MINUTE = 2.0
"""Seconds for each minute of the paper."""

CONFIGURATIONS = (
    ("instant", 0.0), ("disruptive", MINUTE), ("disruptive", 5 * MINUTE), ("smooth", MINUTE), ("labelled", MINUTE),
    ("auto", MINUTE),
)  # fmt: skip
"""Strategies, and the seconds between the starts of two moves; with 0, the next one begins when one has ended."""

SOON = 0.1
"""Seconds after which a job is asked whether another shard should move, if shards move continuously."""

AFFECTED = 2.0
"""Seconds after the request of a move in which the rows that are due count as due during the migration."""


def run(client: Client, strategy: str, every: float, rate: float, given: argparse.Namespace) -> dict[str, Any]:
    """Run once, and move shards to the worker with less load."""
    for kind in ("rows", "results"):
        client.run(take_latencies, kind)
    job = de.submit(
        _topology(given, rate, given.seconds, given.warm), client, cores={"per_key": 2}, migration=strategy,
        # No balancing and no control: only the requested moves are measured.
        balance_interval="1h", light_load=0, latency_target=None,
    )  # fmt: skip
    home = job.assignment()["home"][0]
    job.set_cores("per_key", dict.fromkeys(client.nthreads(), 1))
    began = time.time() + PLACING + given.warm
    requested, state_bytes, before = [], 0.0, None
    while _runs(job, (every or SOON) if time.time() > began else began - time.time()):
        before = before or (time.time(), _cpu(client))
        if _relieve(job, time.time() - began):
            requested.append(time.time())
        # At the end the windows close, and their state is removed.
        state_bytes = max(state_bytes, float(job.metrics().set_index("operator").loc["per_key", "state_bytes"]))
    cpu = 0.0 if before is None else (sum(_cpu(client)) - sum(before[1])) / (time.time() - before[0])
    moves = job.moves()
    job.forget()
    late = moves[(moves["ended"] > began) & moves["across_nodes"]]
    found = {
        "strategy": strategy,
        "every": every,
        "rate": round(rate),
        "home": str(home),
        "moves": len(late),
        "chosen": late["strategy"].value_counts().to_dict(),
        "cpu": round(cpu / os.cpu_count(), 2),
        "pause_p50_ms": round(float(late["pause"].median() * 1e3), 2),
        "pause_max_ms": round(float(late["pause"].max() * 1e3), 2),
        "state_mib_per_shard": round(state_bytes / SHARDS / 2**20, 1),
    }
    for kind in ("rows", "results") if given.close else ("rows",):
        found[kind] = _of_kind(client, kind, np.array(requested))
    return found


def _runs(job: de.Job, seconds: float) -> bool:
    """Wait some seconds; returns whether the job still runs."""
    return bool(job._ask(Wait(job.name, seconds)).status.value == "running")


def _cpu(client: Client) -> tuple[float, ...]:
    """Return the processor seconds of this process, which has the scheduler, and of the workers."""
    return time.process_time(), *client.run(time.process_time).values()


def _rate(client: Client, given: argparse.Namespace) -> float:
    """Return the rows per second at which the busier worker uses as much of a core as asked for."""
    warm = 2 * given.warm
    job = de.submit(
        _topology(given, given.rate, 0.0, warm), client, cores={"per_key": 2}, balance_interval="1h",
        light_load=0, latency_target=None,
    )  # fmt: skip
    job.set_cores("per_key", dict.fromkeys(client.nthreads(), 1))
    # The first half has new keys, which cost more, and what they leave behind in queues.
    _runs(job, PLACING + 0.75 * warm)
    before, began = _cpu(client), time.time()
    _runs(job, 0.25 * warm - 1)
    used = [after - earlier for after, earlier in zip(_cpu(client), before, strict=True)]
    seconds = time.time() - began
    job.wait(progress=False)
    job.forget()
    for kind in ("rows", "results"):
        client.run(take_latencies, kind)
    return float(given.rate * given.load * seconds / max(used[1:]))


def _topology(given: argparse.Namespace, rate: float, seconds: float, warm: float) -> de.Topology:
    topology = de.Topology("migration-strategies")
    read = functools.partial(keyed_rows, seconds, warm, rate, given.keys)
    source = topology.source("rows", de.sources.Iterable(read, event_time="at"))
    window = source.key_by("key").window(given.close or "1h")
    more = {f"most_{number}": de.aggregate.Max("value") for number in range(given.fields)}
    total = de.aggregate.Sum(timed, columns=["value", "due"])
    aggregates = {"rows": de.aggregate.Count(), "total": total, **more}
    results = window.compute(aggregates, name="per_key", executors=1, shards=SHARDS)
    if given.close:
        results.sink(de.sinks.Call(timed_results), name="out")
    return topology


def _of_kind(client: Client, kind: str, requested: np.ndarray) -> dict[str, Any]:
    """Return the latencies of the rows or results that are due during migrations, of the others, and of all."""
    found = list(client.run(take_latencies, kind).values())
    due, waited = (np.concatenate(columns) for columns in zip(*found, strict=True))
    moving = np.zeros(len(due), np.bool_)
    if len(requested):
        after = due - requested[np.maximum(np.searchsorted(requested, due, side="right") - 1, 0)]
        moving = (after >= 0) & (after < AFFECTED)
    return {"moving": _latencies(waited[moving]), "others": _latencies(waited[~moving]), "all": _latencies(waited)}


def _latencies(waited: np.ndarray) -> dict[str, float]:
    """Return the mean and quantiles of latencies in ms."""
    if not len(waited):
        return {}
    quantiles = np.quantile(waited, (0.5, 0.9, 0.99))
    found = {"mean": waited.mean(), **dict(zip(("p50", "p90", "p99"), quantiles, strict=True))}
    return {name: round(float(value) * 1e3, 2) for name, value in found.items()}


def _relieve(job: de.Job, at: float) -> bool:
    """Move the shard to the task with less load that evens the loads best; returns whether one moves."""
    placed = job.assignment()
    load = [side_rates(at)[shard % 2] for shard in range(SHARDS)]
    by_task = {int(task): list(map(int, shards)) for task, shards in zip(placed["task"], placed["shards"], strict=True)}
    heavy, light = sorted(by_task, key=lambda task: -_sum(load, by_task[task]))[:2]
    excess = _sum(load, by_task[heavy]) - _sum(load, by_task[light])
    # The oldest entry first: the same shard does not travel to and fro.
    best = min(by_task[heavy], key=lambda shard: (abs(excess - 2 * load[shard]), _moved_at[shard]))
    if abs(excess - 2 * load[best]) > excess:
        return False
    try:
        job.move_shard("per_key", best, light)
    except MoveRefused:
        # It has not arrived yet.
        return False
    _moved_at[best] = time.time()
    return True


_moved_at: dict[int, float] = defaultdict(float)


def _sum(load: Sequence[float], shards: Sequence[int]) -> float:
    return sum(load[shard] for shard in shards)


def _ratios(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the latencies of all rows as multiples of those of the first configuration, over all runs."""
    found: dict[str, dict[str, float]] = {}
    for measure in ("mean", "p50", "p90", "p99"):
        values: dict[str, list[float]] = defaultdict(list)
        for one in runs:
            values[f"{one['strategy']}:{one['every']:g}"].append(one["rows"]["all"].get(measure, np.nan))
        first = np.mean(next(iter(values.values())))
        found[measure] = {name: round(float(np.mean(latencies) / first), 1) for name, latencies in values.items()}
    return found


def _configuration(text: str) -> tuple[str, float]:
    strategy, _, every = text.partition(":")
    return strategy, float(every or MINUTE)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--warm", type=float, default=16.0, help="seconds before the load changes")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--load", type=float, default=0.7, help="share of a core that the busier worker uses at first")
    parser.add_argument("--rate", type=float, default=8_000, help="rows per second of the trial")
    parser.add_argument("--keys", type=int, default=50_000, help="keys of each shard")
    parser.add_argument("--fields", type=int, default=128, help="aggregates of each key, 8 bytes each")
    parser.add_argument("--close", help="length of the windows; without it none closes")
    parser.add_argument("--only", type=_configuration, action="append", help="strategy:seconds between two moves")
    given = parser.parse_args()
    runs = []
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        rate = _rate(client, given)
        for _ in range(given.runs):
            for strategy, every in given.only or CONFIGURATIONS:
                runs.append(run(client, strategy, every, rate, given))
                print(json.dumps(runs[-1]), flush=True)
    print(json.dumps({"times the first": _ratios(runs)}))


if __name__ == "__main__":
    main()
