"""Latency while shards of windows move between two workers as load changes: Enorm, section 7.5 and Figure 13.

One executor has a task on each of two workers, and open windows of 50,000 keys in each shard, as in the paper.
`--fields` aggregates for each key make the state of a shard as large as that of a Java program, since it is the state
that makes a migration slow. At first each task is busy for `--load` of its time. Then a worker is chosen, and in three
*minutes* the load of the shards that it has rises by `--rise`, and stays for two; then the other worker is chosen, and
so on, while the shards with more load lose it again. A minute takes `--minute` seconds here. The chosen worker is
overloaded unless shards leave it; while the loads are even, none is. As in the paper, shards move continuously with
`instant`, and every minute or every five with `disruptive`: the moves that the engine's planner returns for the loads
at that time.

Each row is served for `--service` microseconds beside what the engine needs for it, for which its task sleeps: as if
it had a core of its own, as in the paper, which has a machine for each of its workers. So the service is emulated,
while the costs of state, moves and merging are those of the engine. With `--busy` a row keeps a core busy instead; two
cores can carry that only if the other worker loses (`--fall`) what the chosen one gains, as with
`--busy --load 0.6 --rise 0.75 --fall 0.75`.

Prints one JSON line for each run, and the ratios to the first configuration at the end: the load of a task before the
first change, moves, their pauses, processor seconds per second of this process and of the workers, and latencies to the
end of processing of the rows that are due in the minute after the request of a move, of the others, and of all. With
`--series`, it prints the mean of all rows that are due in each quarter of a minute, too, which is what the paper draws.
With `--close`, windows of that length close, and the latencies are also those of results, from the end of their window
to the sink. A trial finds the rate of the load; on a machine with other work, give it by `--rate`.

    python benchmarks/migration_strategies.py [--minute 4] [--changes 2] [--runs 1] [--load 0.7] [--keys 50000]
        [--fields 64] [--only instant:0 --only disruptive:1 --only disruptive:5] [--close 4s] [--series]
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from _skewed_rows import (
    PLACING,
    SHARDS,
    Served,
    Skew,
    begin_skew,
    change_skew,
    keyed_rows,
    take_latencies,
    timed_results,
)
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.planning.balance import balance
from dask_elastic.runtime.protocol.job_calls import Wait
from dask_elastic.vocab.errors import MoveRefused

CONFIGURATIONS = (("instant", 0.0), ("disruptive", 1.0), ("disruptive", 5.0))
"""Strategies, and the minutes between two plans; with 0, plans follow each other."""

RISE_MINUTES, CHANGE_MINUTES = 3, 5
"""How long the load rises, and until another worker is chosen."""

SOON = 0.1
"""Minutes between two plans if shards move continuously."""

THRESHOLD = 1.05
"""The load of a task over the mean up to which no shard moves."""

TRIAL_SECONDS = 12.0
"""For how long rows are served in the trial, which finds how many a task can serve."""

GAIN = 0.1
"""What a move has to gain, as a share of the mean load of a shard: less is not worth a move."""


class Plan(NamedTuple):
    """When a worker is chosen, or shards move."""

    at: float
    is_change: bool


class Moves:
    """Changes the load of one job, and moves its shards, as one configuration does."""

    def __init__(self, job: de.Job, client: Client, given: argparse.Namespace):
        self.job = job
        self.client = client
        self.given = given
        self.skew = Skew(RISE_MINUTES * given.minute)
        self.requested: list[float] = []
        placed = job.assignment()
        self.tasks = sorted(map(int, placed["task"]))
        # With the shards that are on their way at their targets: the next plan counts them there.
        self.owner = np.empty(SHARDS, np.int64)
        for task, shards in zip(placed["task"], placed["shards"], strict=True):
            self.owner[list(shards)] = task
        client.run(begin_skew, self.skew.rise)

    def choose(self, number: int) -> None:
        """Let the load of the shards rise that one of the two workers has now."""
        chosen = self.owner == self.tasks[number % 2]
        goals = np.where(chosen, 1 + self.given.rise, 1 - self.given.fall)
        now = time.time()
        self.skew.change(now, goals)
        self.client.run(change_skew, now, goals.tolist())

    def plan(self) -> None:
        """Move the shards that even out the loads of the tasks."""
        load = self.skew.rates(time.time())
        for move in balance(load, self.owner, self.tasks, THRESHOLD, cost=GAIN * load.mean()):
            try:
                self.job.move_shard("per_key", move.shard, move.target)
            except MoveRefused:
                # It has not arrived yet.
                continue
            self.owner[move.shard] = move.target
            self.requested.append(time.time())


def run(client: Client, strategy: str, every: float, rate: float, given: argparse.Namespace) -> dict[str, Any]:
    """Run once: change the load, and move shards."""
    for kind in ("rows", "results"):
        client.run(take_latencies, kind)
    seconds = given.changes * CHANGE_MINUTES * given.minute
    job, home = _submit(client, _topology(given, rate, given.warm + seconds), strategy)
    began = time.time() + given.warm
    moves = Moves(job, client, given)
    _runs(job, began - time.time())
    before = _cpu(client)
    measured = job.metrics().set_index("operator").loc["per_key"]
    for step in _steps(given, every):
        if not _runs(job, began + step.at - time.time()):
            break
        if step.is_change:
            moves.choose(round(step.at / given.minute / CHANGE_MINUTES))
        else:
            moves.plan()
    _runs(job, began + seconds - time.time())
    cpu = [round((now - then) / seconds, 2) for now, then in zip(_cpu(client), before, strict=True)]
    job.wait(progress=False)
    made = job.moves()
    job.forget()
    late = made[(made["ended"] > began) & made["across_nodes"]]
    found = {
        "strategy": strategy,
        "every": every,
        "rate": round(rate),
        "load": round(float(measured["busy"]) / 2, 2),
        "home": str(home),
        "moves": len(late),
        "cpu": cpu,
        "pause_p50_ms": round(float(late["pause"].median() * 1e3), 2),
        "pause_max_ms": round(float(late["pause"].max() * 1e3), 2),
        "state_mib_per_shard": round(float(measured["state_bytes"]) / SHARDS / 2**20, 1),
    }
    for kind in ("rows", "results") if given.close else ("rows",):
        found[kind] = _of_kind(client, kind, began, np.array(moves.requested), given)
    return found


def _steps(given: argparse.Namespace, every: float) -> Iterator[Plan]:
    """Yield when workers are chosen and plans made, after the warming; a plan before the choice of another worker."""
    between = (every or SOON) * given.minute
    change = CHANGE_MINUTES * given.minute
    plans = [Plan(number * between, False) for number in range(1, int(given.changes * change / between + 1e-9))]
    changes = [Plan(number * change, True) for number in range(given.changes)]
    yield from sorted([*plans, *changes])


def _submit(client: Client, topology: de.Topology, strategy: str = "labelled") -> tuple[de.Job, str]:
    """Submit a job with a task on each worker, before its first row; returns the home of its executor, too."""
    job = de.submit(
        topology, client, cores={"per_key": 2}, migration=strategy,
        # No balancing and no control: only the requested moves are measured.
        balance_interval="1h", light_load=0, latency_target=None,
    )  # fmt: skip
    submitted = time.time()
    home = job.assignment()["home"][0]
    job.set_cores("per_key", dict.fromkeys(client.nthreads(), 1))
    _runs(job, submitted + PLACING - time.time())
    return job, home


def _runs(job: de.Job, seconds: float) -> bool:
    """Wait some seconds; returns whether the job still runs."""
    return bool(job._ask(Wait(job.name, max(seconds, 0.0))).status.value == "running")


def _cpu(client: Client) -> tuple[float, ...]:
    """Return the processor seconds of this process, which has the scheduler, and of the workers."""
    return time.process_time(), *client.run(time.process_time).values()


def _rate(client: Client, given: argparse.Namespace) -> float:
    """Return the rows per second at which two tasks are busy for as much of their time as asked for."""
    few = argparse.Namespace(**{**vars(given), "keys": given.keys // 5, "warm": given.warm / 4})
    seconds = few.warm + TRIAL_SECONDS
    job, _ = _submit(client, _topology(few, 2 * given.load / given.service * 0.8e6, seconds))
    # The rate of service is that of the last seconds: it is read before the end.
    _runs(job, seconds - 0.5)
    found = float(job.metrics().set_index("operator").loc["per_key", "service_rate"])
    job.wait(progress=False)
    job.forget()
    return 2 * given.load * found


def _topology(given: argparse.Namespace, rate: float, seconds: float) -> de.Topology:
    topology = de.Topology("migration-strategies")
    read = functools.partial(keyed_rows, seconds - given.warm, given.warm, rate, given.keys)
    source = topology.source("rows", de.sources.Iterable(read, event_time="at"))
    window = source.key_by("key").window(given.close or "1h")
    more = {f"most_{number}": de.aggregate.Max("value") for number in range(given.fields)}
    total = de.aggregate.Sum(Served(given.service * 1e-6, not given.busy), columns=["value", "due"])
    aggregates = {"rows": de.aggregate.Count(), "total": total, **more}
    results = window.compute(aggregates, name="per_key", executors=1, shards=SHARDS)
    if given.close:
        results.sink(de.sinks.Call(timed_results), name="out")
    return topology


def _of_kind(
    client: Client, kind: str, began: float, requested: np.ndarray, given: argparse.Namespace
) -> dict[str, Any]:
    """Return the latencies of the rows or results that are due during migrations, of the others, and of all."""
    found = list(client.run(take_latencies, kind).values())
    due, waited = (np.concatenate(columns) for columns in zip(*found, strict=True))
    due, waited = due[due >= began], waited[due >= began]
    moving = np.zeros(len(due), np.bool_)
    if len(requested):
        after = due - requested[np.maximum(np.searchsorted(requested, due, side="right") - 1, 0)]
        moving = (after >= 0) & (after < given.minute)
    shown = {"moving": _latencies(waited[moving]), "others": _latencies(waited[~moving]), "all": _latencies(waited)}
    if given.series:
        quarter = ((due - began) / given.minute * 4).astype(np.int64)
        counts, sums = np.bincount(quarter), np.bincount(quarter, waited)
        shown["series_ms"] = np.round(sums / np.maximum(counts, 1) * 1e3).astype(int).tolist()
    return shown


def _latencies(waited: np.ndarray) -> dict[str, float]:
    """Return the mean and quantiles of latencies in ms."""
    if not len(waited):
        return {}
    quantiles = np.quantile(waited, (0.5, 0.9, 0.99))
    found = {"mean": waited.mean(), **dict(zip(("p50", "p90", "p99"), quantiles, strict=True))}
    return {name: round(float(value) * 1e3, 2) for name, value in found.items()}


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
    return strategy, float(every or 1.0)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minute", type=float, default=4.0, help="seconds for each minute of the paper")
    parser.add_argument("--changes", type=int, default=2, help="how often a worker is chosen")
    parser.add_argument("--warm", type=float, default=32.0, help="seconds before the load changes")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--load", type=float, default=0.7, help="share of its time for which a task is busy at first")
    parser.add_argument("--rate", type=float, help="rows per second at first, instead of a trial")
    parser.add_argument("--rise", type=float, default=0.5, help="share by which the load of the chosen shards rises")
    parser.add_argument("--fall", type=float, default=0.0, help="share by which the load of the others falls")
    parser.add_argument("--service", type=float, default=200.0, help="microseconds for which a row is served")
    parser.add_argument("--busy", action="store_true", help="keep a core busy instead of sleeping")
    parser.add_argument("--keys", type=int, default=50_000, help="keys of each shard")
    parser.add_argument("--fields", type=int, default=64, help="aggregates of each key, 8 bytes each")
    parser.add_argument("--close", help="length of the windows; without it none closes")
    parser.add_argument("--series", action="store_true", help="print the mean latency in each quarter of a minute")
    parser.add_argument("--only", type=_configuration, action="append", help="strategy:minutes between two plans")
    given = parser.parse_args()
    runs = []
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        rate = given.rate or _rate(client, given)
        for number in range(given.runs):
            # In alternated order: what a run leaves behind is not always that of the same configuration.
            chosen = given.only or CONFIGURATIONS
            for strategy, every in chosen if number % 2 == 0 else chosen[::-1]:
                runs.append(run(client, strategy, every, rate, given))
                print(json.dumps(runs[-1]), flush=True)
    print(json.dumps({"times the first": _ratios(sorted(runs, key=_position(given)))}))


def _position(given: argparse.Namespace) -> Any:
    order = [*(given.only or CONFIGURATIONS)]
    return lambda one: order.index((one["strategy"], one["every"]))


if __name__ == "__main__":
    main()
