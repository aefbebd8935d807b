"""`dynamics.py` on a virtual clock: fast, deterministic, and without the noise of the machine.

The executors, meters, windows of credit, balancing and the control loop are the engine's own; threads, sockets, Dask
and service times are emulated (`_virtual.py`). Prints one JSON line per setting, and with `--seconds-shown` the
throughput, the possible throughput, cores and queues of each second.

With ``--like paper``, balancing, service times and the period of the control loop are those of the Elasticutor paper,
as in `dynamics.py`.

Paradigms are compared on the same keys, in the same order:

- *executor-centric*, and *static* with an executor per core;
- resource-centric (*synchronised*, *progressive*, *auto*, by the strategy of their moves), with an executor per core
  and as many key groups as the executor-centric one has shards; Flux repartitions them as in `dynamics.py`;
- *one-by-one*, the resource-centric baseline as the paper describes it (`VirtualReassignments`).

The cluster has ``--nodes`` of ``--cores`` each. With ``--gbps``, rows and state share the links of each node, and
messages take what `COSTS` says; ``--shard-kb`` is the state of a shard. The cluster of Elasticutor (section 5) is
``--nodes 32 --cores 8 --executors 32 --instances 32 --gbps 1 --shard-kb 32 --keys 10000``; its rows have 136 bytes. The
number of upstream instances is not in the paper's text; here it is that of the nodes.

Sources read as fast as they can (then latency is that from the reading of a batch), or with ``--load`` at a share of
the possible throughput of the executor-centric job, the mean over its reshuffles: then latency counts from when rows
are due, and `lag_s` is by how much the source is late in the end. The first ``--warm`` seconds do not count.

Of resource-centric jobs, a line has the number of migrations and their groups; `paused_share`, the part of the time in
which all instances pause (synchronised ones only), and `lost_paused` and `lost_between`, what the throughput lacks of
the possible one during pauses and between them, as shares of the possible one; `waited_ms`, the median time from the
switch to the end of a move; `moving_share`, the part of the time in which groups move; and `plan_s` and `plan_groups`,
how long the plans took that were carried out wholly, and how many groups they moved (medians). All lines have the state
that moves between nodes, in MB per minute.

    python benchmarks/dynamics_virtual.py [--keys 100] [--shuffles 0 2 16] [--orders 4] [--seconds 60] [--warm 12]
                                          [--like defaults paper] [--load 0.9]
                                          [--paradigms executor-centric one-by-one synchronised progressive auto static]
                                          [--nodes 4] [--cores 4] [--executors 4] [--instances 1] [--gbps 1]
                                          [--shard-kb 32] [--message-costs 1]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from _network import Costs
from _virtual import VirtualJob
from _virtual_groups import VirtualGroups, VirtualReassignments
from _virtual_options import Options
from dynamics import ORDERS_OF_A_RUN, keys_by_rank, possible, possible_groups, possible_static, weights

from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.migration.strategy import GROUP_STRATEGIES
from dask_elastic.routing.hashing import hash_columns

LIKE: dict[str, dict[str, float]] = {
    "defaults": {},
    "paper": {
        "balance_threshold": 1.2,
        "balance_interval": 0.5,
        "control_period": 0.5,
        "service_deviation": 5e-4,
        "inbox_time": 0.02,
    },
}
"""Elasticutor, section 3.1, and the interval of the control loop in its evaluation.

Tasks take up to 20 ms of work at once, instead of 5 ms, which spares more than half of the time of a run.
"""

CENTRIC, STATIC, ONE_BY_ONE = "executor-centric", "static", "one-by-one"

REPARTITIONING = PlacementSettings(period=0.5, least_gain=0.2, patience=1, cooldown=0.0, max_moves=8)
"""As in `dynamics.py`."""

ROW_BYTES = 136
"""A key of 8 bytes and a payload of 128 bytes."""

COSTS = Costs(mark=12e-6, call=0.18e-3, step=7e-6, state=4e-9)
"""What messages and state take, from `synchronisation.py` and `group_moves.py` on two cores that others used as well.

Of several measurements, these are the lowest, so that the strategies with more messages are not made to look worse than
they are. With 32 executors on two workers, 31 more instances add 12.7 ms to the shortest pause: 12.8 us per end mark,
while each worker sends half of them and gets half (67 us with eight workers, for which two cores are too few). 24 more
executors add 0.26 ms, in three steps, half of them on each worker. Six more workers add 6.4 ms, in three rounds of
calls and answers. State of 77 MB takes 0.6 s from node to node, of which each node has half.
"""

CORE_ROWS = 16
"""Rows of a batch, per core."""

BOUND_SECONDS = 0.25
"""Steps at which the possible throughput is taken."""

STATIC_SHARDS = 4
"""Shards of an executor with one core, which change nothing."""


@functools.cache
def bounds(keys: int, epoch: int, options: Options) -> tuple[float, float, float]:
    """Return the possible rows per second, executor-centric, with groups and static."""
    cores, groups = options.cores, options.executors * options.shards
    centric = possible(keys, epoch, options.executors, cores)
    return centric, possible_groups(keys, epoch, cores, groups), possible_static(keys, epoch, cores)


def run(keys: int, shuffles: float, first: int, seconds: int, options: Options, paradigm: str = CENTRIC) -> VirtualJob:
    """Run one job from the given order of the keys on."""
    random = np.random.default_rng(3)
    shares = np.cumsum(weights(keys))
    hashes = hash_columns(pa.record_batch({"key": np.arange(keys)}), ("key",))
    orders: dict[int, np.ndarray] = {}

    def draw(due: float) -> np.ndarray:
        epoch = first + int(due * shuffles / 60)
        if epoch not in orders:
            orders[epoch] = keys_by_rank(keys, epoch)
        ranks = np.minimum(np.searchsorted(shares, random.random(options.batch_rows)), keys - 1)
        return hashes[orders[epoch][ranks]]

    if paradigm == CENTRIC:
        return VirtualJob(draw, options).run(float(seconds))
    if paradigm == STATIC:
        divided = replace(options, executors=options.cores, shards=STATIC_SHARDS, elastic=False)
        return VirtualJob(draw, divided).run(float(seconds))
    divided = replace(options, executors=options.cores, shards=options.executors * options.shards)
    if paradigm == ONE_BY_ONE:
        return VirtualReassignments(draw, divided, REPARTITIONING, "synchronised", "flux").run(float(seconds))
    return VirtualGroups(draw, divided, REPARTITIONING, paradigm, "flux").run(float(seconds))


def throughput(job: VirtualJob, seconds: int) -> np.ndarray:
    """Return the rows of each second."""
    at, rows, _ = np.array(job.done).reshape(-1, 3).T
    return np.histogram(at, np.arange(seconds + 1.0), weights=rows)[0]


def counted(job: VirtualJob, warm: float) -> tuple[np.ndarray, np.ndarray]:
    """Return rows that were processed after the warm-up, and their latencies."""
    at, rows, waited = np.array(job.done).reshape(-1, 3).T
    return rows[at >= warm], waited[at >= warm]


def measured(keys: int, shuffles: float, like: str, paradigm: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sums over the first orders of the keys."""
    seconds, warm = arguments.seconds, arguments.warm
    options = cluster(arguments, like)
    sums, parts, found = np.zeros(3), [], []
    for number in range(arguments.orders):
        first = number * ORDERS_OF_A_RUN
        epochs = [first + int(at * shuffles / 60) for at in np.arange(warm, seconds, BOUND_SECONDS).tolist()]
        best = np.array([bounds(keys, epoch, options) for epoch in epochs])
        rate = arguments.load and arguments.load * float(best[:, 0].mean())
        job = run(keys, shuffles, first, seconds, replace(options, rate=rate), paradigm)
        own = best[:, 1] if isinstance(job, VirtualGroups) else best[:, 2] if paradigm == STATIC else best[:, 0]
        parts.append(counted(job, warm))
        sums += parts[-1][0].sum() / (seconds - warm), own.mean(), best[:, 2].mean()
        found.append({"lag_s": job.lag, **moved(job, seconds), **lost(job, warm, seconds, float(own.mean()))})
        if arguments.seconds_shown:
            show(job, throughput(job, seconds))
    rows, waited = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(waited, kind="stable")
    p99 = waited[order][np.searchsorted(np.cumsum(rows[order]), 0.99 * rows.sum())]
    made = {
        "benchmark": "dynamics-virtual",
        "paradigm": paradigm,
        "like": like,
        "keys": keys,
        "cores": options.cores,
        "shuffles_per_minute": shuffles,
        "orders": arguments.orders,
        "load": arguments.load,
        "throughput": round(sums[0] / arguments.orders),
        "of_possible": round(sums[0] / sums[1], 3),
        "times_static": round(sums[0] / sums[2], 2),
        "possible_times_static": round(sums[1] / sums[2], 2),
        "latency_ms": round(1e3 * float(waited @ rows / rows.sum())),
        "p99_ms": round(1e3 * float(p99)),
    }
    return made | {name: round(float(np.mean([one[name] for one in found])), 3) for name in found[0]}


def cluster(arguments: argparse.Namespace, like: str) -> Options:
    """Return the options of the executor-centric job on the given cluster."""
    given = dict(LIKE[like])
    if arguments.period is not None:
        given["control_period"] = arguments.period
    costs = Costs()
    if arguments.gbps is not None:
        times = arguments.message_costs
        costs = Costs(
            bandwidth=arguments.gbps * 1e9 / 8,
            row_bytes=ROW_BYTES,
            shard_bytes=int(arguments.shard_kb * 1024),
            mark=times * COSTS.mark,
            call=times * COSTS.call,
            step=times * COSTS.step,
            state=COSTS.state,
        )
    return Options(
        nodes=arguments.nodes,
        threads=arguments.cores,
        executors=arguments.executors,
        instances=arguments.instances,
        batch_rows=CORE_ROWS * arguments.nodes * arguments.cores,
        report_interval=arguments.report,
        costs=costs,
        **given,
    )


def moved(job: VirtualJob, seconds: int) -> dict[str, float]:
    """Return what moved, and how long that took."""
    made = {"state_mb_per_minute": job.network.state_bytes / 1e6 / seconds * 60}
    if not isinstance(job, VirtualGroups):
        return {"moves": float(sum(executor.moves.finished for executor in job.executors)), **made}
    pauses = [move.pause for move in job.ended]
    return {
        "migrations": float(len(pauses)),
        "moves": float(sum(move.groups for move in job.ended)),
        "waited_ms": 1e3 * float(np.median(pauses)) if pauses else 0.0,
        "plan_s": float(np.median([taken for taken, _ in job.repartitionings])) if job.repartitionings else 0.0,
        "plan_groups": float(np.median([groups for _, groups in job.repartitionings])) if job.repartitionings else 0.0,
        "moving_share": sum(move.seconds for move in job.ended) / seconds,
        **made,
    }


def lost(job: VirtualJob, warm: float, seconds: int, best: float) -> dict[str, float]:
    """Return how long all instances paused, and what the throughput lacks of the possible one then and otherwise."""
    if not isinstance(job, VirtualGroups):
        return {}
    at, rows, _ = np.array(job.done).reshape(-1, 3).T
    stops = [(max(since, warm), until) for since, until in job.stops if until > warm]
    paused = sum(until - since for since, until in stops)
    done = sum(float(rows[(at >= since) & (at < until)].sum()) for since, until in stops)
    counted, every = float(rows[at >= warm].sum()), (seconds - warm) * best
    return {
        "paused_share": paused / (seconds - warm),
        "lost_paused": (paused * best - done) / every,
        "lost_between": ((seconds - warm - paused) * best - (counted - done)) / every,
    }


def show(job: VirtualJob, rates: np.ndarray) -> None:
    """Print throughput, cores and queues of each second."""
    for now, cores, queues in job.looks:
        print(f"{now:6.1f} s: {rates[min(int(now), len(rates) - 1)]:6.0f} rows/s, {cores=}, {queues=}")
    print("\n".join(job.decisions))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--shuffles", type=float, nargs="+", default=[0.0, 2.0, 16.0])
    parser.add_argument("--orders", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--warm", type=float, default=12.0, help="seconds that do not count")
    parser.add_argument("--period", type=float, help="seconds between two ticks of the control loop")
    parser.add_argument("--report", type=float, default=0.5, help="seconds between two reports of a worker")
    parser.add_argument("--like", nargs="+", choices=LIKE, default=["defaults"])
    parser.add_argument("--load", type=float, help="share of the possible throughput; as much as possible by default")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cores", type=int, default=4, help="of a node")
    parser.add_argument("--executors", type=int, default=4, help="of the executor-centric job")
    parser.add_argument("--instances", type=int, default=1, help="of the source")
    parser.add_argument("--gbps", type=float, help="of the link of a node in each direction; no limit by default")
    parser.add_argument("--shard-kb", type=float, default=0.0, help="state of a shard, if links have a limit")
    parser.add_argument("--message-costs", type=float, default=1.0, help="as a multiple of what was measured")
    parser.add_argument("--seconds-shown", action="store_true")
    paradigms = (CENTRIC, ONE_BY_ONE, *GROUP_STRATEGIES, STATIC)
    parser.add_argument("--paradigms", nargs="+", choices=paradigms, default=[CENTRIC])
    arguments = parser.parse_args()
    for shuffles, like in itertools.product(arguments.shuffles, arguments.like):
        centric: dict[str, Any] | None = None
        for paradigm in arguments.paradigms:
            made = measured(arguments.keys, shuffles, like, paradigm, arguments)
            if paradigm == CENTRIC:
                centric = made
            elif centric is not None:
                made["executor_centric_times"] = round(centric["throughput"] / made["throughput"], 2)
                made["latency_times"] = round(made["latency_ms"] / centric["latency_ms"], 2)
                made["p99_times"] = round(made["p99_ms"] / centric["p99_ms"], 2)
            print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
