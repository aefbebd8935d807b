"""Throughput and latency under changing key weights, by paradigm, and compared with the possible throughput.

Sixteen emulated cores (service time 1 ms per tuple by sleeping; 4 workers of 4 threads) process a stream as fast as
they can. Several times a minute the keys are reshuffled: each gets another key's weight. "Possible" is the throughput
of a planner that knows the keys' weights, with whole cores per executor and whole shards per core.

The throughput of static executors depends on the random order of the keys: with 100 keys "possible" is between 1.4 and
2.5 times as much. Every run therefore draws other orders, the same for all paradigms, and the result compares the
sums over the runs. The first line for each number of keys has the computed bounds over many orders, without a run.

All paradigms have the same cores. The executor-centric one has an executor per worker with 256 shards, the static one
an executor per core. The resource-centric one is the baseline of Elasticutor: an executor per core, and as many key
groups as the executor-centric one has shards. When the load has shifted, Flux repartitions the groups; the groups move
while the upstream instance pauses ("synchronised", as in the paper), progressively, up to 8 of a worker at a time, or
by the cheaper of these ("auto"). It decides on each snapshot of the control loop, without patience or rest, once the
largest load is 1.2 times the mean: by chance, loads of one second differ by more than the 1.05 times of the balancing
of shards, and groups would move for nothing.

Jobs have the default options. With ``--like paper``, balancing and service times are those of the Elasticutor paper:
the largest load may be 1.2 times the mean, all loops run every 0.5 s, and the service time of a tuple is normally
distributed, of 1 ms with a standard deviation of 0.5 ms. Latency is the time from the reading of a row to the end of
its processing. It includes the queues, which are always full.

    python benchmarks/dynamics.py [--seconds 45] [--runs 3] [--setting 3 4 5] [--like defaults paper]
                                  [--paradigms executor-centric static synchronised progressive auto]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import dask.config
import numpy as np
import pyarrow as pa
from _emulated import forget_processed, per_second, processed, served_in_1_ms, served_in_about_1_ms
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.migration.strategy import GROUP_STRATEGIES
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace

WORKERS, THREADS = 4, 4
CORES = WORKERS * THREADS
SERVICE = 1e-3
ZIPF = 0.5
SHARDS = 256
BATCH_ROWS = 256
BALLAST = 10_000
WARM_SECONDS = 12.0
"""Warm-up in which cores and shards settle; not measured."""

SETTINGS = [(10_000, 0), (10_000, 2), (10_000, 16), (100, 0), (100, 2), (100, 16)]
"""Number of keys, and reshuffles per minute."""

PARADIGMS = ("executor-centric", "static", "synchronised", "progressive")
"""The last two are resource-centric, by the strategy of their moves."""

PAPER = {"balance_threshold": 1.2, "balance_interval": "500ms"}
"""Elasticutor, section 3.1, and the interval of the control loop in its evaluation."""

CONTROL_PERIODS = {"defaults": "1s", "paper": "500ms"}

REPARTITIONING = {
    "placement-period": "500ms",
    "placement-least-gain": 0.2,
    "placement-patience": 1,
    "placement-cooldown": "0s",
    "placement-max-moves": 8,
}
"""Operator-level key repartitioning as soon as the load has shifted."""

ORDERS_OF_A_RUN = 1_000
"""Each run draws its own orders of the keys."""

COMPUTED_ORDERS = 200


def weights(keys: int) -> np.ndarray:
    """Return the share of each rank."""
    shares = np.arange(1, keys + 1, dtype=float) ** -ZIPF
    return shares / shares.sum()


def keys_by_rank(keys: int, epoch: int) -> np.ndarray:
    """Return the key of each rank in one of the orders."""
    return np.random.default_rng([7, epoch]).permutation(keys)


def stream(keys: int, shuffles: float, seconds: float, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield rows until some seconds have passed."""
    rng = np.random.default_rng(3)
    shares = np.cumsum(weights(keys))
    value = pa.array(np.ones(BATCH_ROWS))
    # An unused column: the engine reads some megabytes ahead, which should be no more than 0.1 s.
    ballast = pa.array([bytes(BALLAST)] * BATCH_ROWS)
    began = time.time()
    while (elapsed := time.time() - began) < seconds:
        of_rank = keys_by_rank(keys, first + int(elapsed * shuffles / 60))
        ranks = np.minimum(np.searchsorted(shares, rng.random(BATCH_ROWS)), keys - 1)
        read = pa.array(np.full(BATCH_ROWS, time.time()))
        yield pa.record_batch({"key": of_rank[ranks], "value": value, "read": read, "ballast": ballast})


def without_ballast(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the unused column."""
    return batch.select(["key", "value", "read"])


def shard_shares(keys: int, epoch: int, executors: int, shards: int = SHARDS) -> np.ndarray:
    """Return the share of each shard of each executor."""
    share = np.empty(keys)
    share[keys_by_rank(keys, epoch)] = weights(keys)
    hashes = hash_columns(pa.record_batch({"key": np.arange(keys)}), ("key",))
    space = KeySpace(executors, shards)
    place = space.executor_of(hashes).astype(int) * shards + space.shard_of(hashes)
    return np.bincount(place, share, executors * shards).reshape(executors, shards)


def possible(keys: int, epoch: int, executors: int, all_cores: int = CORES) -> float:
    """Return rows per second with optimal cores per executor and optimal shards per core."""
    by_shard = shard_shares(keys, epoch, executors)
    cores = np.ones(executors, dtype=int)
    worst = np.array([_largest(shards, 1) for shards in by_shard])
    for _ in range(all_cores - executors):
        slowest = int(worst.argmax())
        cores[slowest] += 1
        worst[slowest] = _largest(by_shard[slowest], cores[slowest])
    return float(1 / (worst.max() * SERVICE))


def possible_groups(keys: int, epoch: int, cores: int = CORES, groups: int = WORKERS * SHARDS) -> float:
    """Return rows per second with one executor per core and optimal groups per executor."""
    return float(1 / (_largest(shard_shares(keys, epoch, 1, groups).ravel(), cores) * SERVICE))


def possible_static(keys: int, epoch: int, cores: int = CORES) -> float:
    """Return rows per second with one executor per core."""
    return float(1 / (shard_shares(keys, epoch, cores).sum(axis=1).max() * SERVICE))


def _largest(shards: np.ndarray, cores: int) -> float:
    """Return the share of the most loaded core: a lower bound for any distribution of whole shards."""
    return float(max(shards.max(), shards.sum() / cores))


def computed(keys: int) -> dict[str, Any]:
    """Return the computed bounds over many orders of the keys."""
    best = np.array([possible(keys, epoch, WORKERS) for epoch in range(COMPUTED_ORDERS)])
    fixed = np.array([possible_static(keys, epoch) for epoch in range(COMPUTED_ORDERS)])
    low, middle, high = np.quantile(best / fixed, [0.1, 0.5, 0.9]).round(2).tolist()
    return {
        "benchmark": "dynamics-computed",
        "keys": keys,
        "orders": COMPUTED_ORDERS,
        "possible": round(float(best.mean())),
        "static": round(float(fixed.mean())),
        "times_static": round(float(best.mean() / fixed.mean()), 2),
        "times_static_p10_p50_p90": [low, middle, high],
    }


def run(
    client: Client, keys: int, shuffles: float, seconds: float, paradigm: str, first: int, paper: bool
) -> dict[str, Any]:
    """Run the job from the given order of the keys on; returns what was measured after the warm-up."""
    client.run(forget_processed)
    grouped = paradigm in GROUP_STRATEGIES
    topology = de.Topology("dynamics")
    source = de.sources.Iterable(functools.partial(stream, keys, shuffles, seconds, first))
    rows = topology.source("stream", source).map(without_ballast)
    total = de.aggregate.Sum(served_in_about_1_ms if paper else served_in_1_ms, columns=["value", "read"])
    computed = {"rows": de.aggregate.Count(), "total": total}
    divided = {"executors": CORES, "shards": WORKERS * SHARDS} if grouped else {"shards": SHARDS}
    rows.key_by("key").compute(computed, name="per_key", **divided)
    options: dict[str, Any] = {"paradigm": paradigm}
    if grouped:
        options = {"paradigm": "resource-centric", "migration": paradigm, "placement": "flux"}
    elif paper and paradigm == "executor-centric":
        options |= PAPER
    began = time.time()
    job = de.submit(topology, client, latency_target="200ms", **options)
    job.wait(progress=False)
    made = {"executors": len(job.metrics()), **_changes(job, grouped)}
    job.forget()
    done = [entry for of_worker in client.run(processed).values() for entry in of_worker]
    counted = [entry for entry in done if began + WARM_SECONDS <= entry[0] < began + seconds]
    rows_done = sum(entry[1] for entry in counted)
    epochs = range(int(WARM_SECONDS * shuffles / 60), int(seconds * shuffles / 60) + 1)
    best = [
        possible_groups(keys, first + epoch) if grouped else possible(keys, first + epoch, made["executors"])
        for epoch in epochs
    ]
    made["throughput"] = rows_done / (seconds - WARM_SECONDS)
    made["possible"] = statistics.mean(best)
    made["latency_s"] = sum(entry[1] * entry[2] for entry in counted) / rows_done
    if shuffles:
        made["recovery_s"] = recovery(done, began, seconds, shuffles)
    return made


def _changes(job: Any, grouped: bool) -> dict[str, Any]:
    """Return the moves of shards and changes of cores, or the moves of groups."""
    decisions = job.decisions()
    if not grouped:
        return {"moves": int(job.metrics()["moves"].sum()), "core_changes": int(decisions["applied"].sum())}
    moved = decisions["reason"][decisions["applied"]].str.extract(r"waited for (\d+) ms")[0].astype(float)
    return {"migrations": len(moved), "longest_wait_ms": float(moved.median()) if len(moved) else 0.0}


def recovery(done: list[tuple[float, int, float]], began: float, seconds: float, shuffles: float) -> float:
    """Return the median time from a reshuffle until half a second's throughput is within 5 % of the settled one."""
    period = 60 / shuffles
    found = []
    for epoch in range(int(WARM_SECONDS / period) + 1, int(seconds / period)):
        start = began + epoch * period
        rates = per_second(done, start, start + min(period, 10.0), 0.1)
        smooth = np.convolve(rates, np.ones(5) / 5, mode="valid")
        settled = np.median(smooth[len(smooth) // 2 :])
        back = np.flatnonzero(smooth >= 0.95 * settled)
        found.append(back[0] * 0.1 + 0.5 if len(back) else period)
    return statistics.median(found) if found else float("nan")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--setting", type=int, nargs="+", default=range(len(SETTINGS)))
    parser.add_argument("--like", nargs="+", choices=CONTROL_PERIODS, default=["defaults"])
    parser.add_argument("--period", help="period of the control loop")
    parser.add_argument("--paradigms", nargs="+", choices=(*PARADIGMS, "auto"), default=PARADIGMS)
    arguments = parser.parse_args()
    for keys in sorted({SETTINGS[setting][0] for setting in arguments.setting}):
        print(json.dumps(computed(keys)), flush=True)
    for like in arguments.like:
        settings: dict[str, Any] = {f"elastic.{name}": value for name, value in REPARTITIONING.items()}
        settings["elastic.control-period"] = arguments.period or CONTROL_PERIODS[like]
        with (
            dask.config.set(settings),
            LocalCluster(n_workers=WORKERS, threads_per_worker=THREADS, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            for setting in arguments.setting:
                print(json.dumps(_measured(client, *SETTINGS[setting], like, arguments)), flush=True)


def _measured(client: Client, keys: int, shuffles: int, like: str, arguments: argparse.Namespace) -> dict[str, Any]:
    made: dict[str, list[dict[str, Any]]] = {paradigm: [] for paradigm in arguments.paradigms}
    for number in range(arguments.runs):
        first = number * ORDERS_OF_A_RUN
        for paradigm in arguments.paradigms:
            made[paradigm].append(run(client, keys, shuffles, arguments.seconds, paradigm, first, like == "paper"))
    line: dict[str, Any] = {"benchmark": "dynamics", "keys": keys, "shuffles_per_minute": shuffles}
    line |= {"runs": arguments.runs, "like": like}
    return line | {paradigm: _of_paradigm(runs, made.get("executor-centric")) for paradigm, runs in made.items()}


def _of_paradigm(runs: list[dict[str, Any]], ours: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return medians, and shares of sums: of the possible throughput, and of that of executor-centric jobs."""
    line = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    line["of_possible"] = round(_sum(runs, "throughput") / _sum(runs, "possible"), 3)
    if ours is not None and ours is not runs:
        line["executor_centric_times"] = round(_sum(ours, "throughput") / _sum(runs, "throughput"), 2)
        line["of_each"] = [round(a["throughput"] / b["throughput"], 2) for a, b in zip(ours, runs, strict=True)]
        line["latency_times"] = round(_sum(runs, "latency_s") / _sum(ours, "latency_s"), 2)
    return line


def _sum(runs: list[dict[str, Any]], name: str) -> float:
    return float(sum(run[name] for run in runs))


if __name__ == "__main__":
    main()
