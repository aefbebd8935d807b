"""`dynamics.py` on a virtual clock: fast, deterministic, and without the noise of the machine.

The executors, meters, windows of credit, balancing and the control loop are the engine's own; threads, sockets, Dask
and service times are emulated (`_virtual.py`). Prints one JSON line per setting, and with `--seconds-shown` the
throughput, the possible throughput, cores and queues of each second.

With ``--like paper``, balancing and service times are those of the Elasticutor paper, as in `dynamics.py`.

Resource-centric jobs (``--paradigms synchronised progressive auto``, by the strategy of their moves) have an executor
per core and as many key groups as the executor-centric one has shards; Flux repartitions them as in `dynamics.py`
(`_virtual_groups.py`). The state of groups is not emulated, so that moves take as long as queues and calls do.

    python benchmarks/dynamics_virtual.py [--keys 100] [--shuffles 0 2 16] [--orders 4] [--seconds 60]
                                          [--like defaults paper]
                                          [--paradigms executor-centric synchronised progressive auto]
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from _virtual import Options, VirtualJob
from _virtual_groups import VirtualGroups
from dynamics import (
    BATCH_ROWS,
    CORES,
    ORDERS_OF_A_RUN,
    SHARDS,
    WORKERS,
    keys_by_rank,
    possible,
    possible_groups,
    possible_static,
    weights,
)

from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.migration.strategy import GROUP_STRATEGIES
from dask_elastic.routing.hashing import hash_columns

WARM_SECONDS = 12

LIKE: dict[str, dict[str, float]] = {
    "defaults": {},
    "paper": {"balance_threshold": 1.2, "balance_interval": 0.5, "service_deviation": 5e-4},
}
"""Elasticutor, section 3.1, and the interval of the control loop in its evaluation."""

CENTRIC = "executor-centric"

REPARTITIONING = PlacementSettings(period=0.5, least_gain=0.2, patience=1, cooldown=0.0, max_moves=64)
"""As in `dynamics.py`."""


def run(keys: int, shuffles: float, first: int, seconds: int, options: Options, paradigm: str = CENTRIC) -> VirtualJob:
    """Run one job from the given order of the keys on."""
    random = np.random.default_rng(3)
    shares = np.cumsum(weights(keys))
    hashes = hash_columns(pa.record_batch({"key": np.arange(keys)}), ("key",))
    orders: dict[int, np.ndarray] = {}

    def draw(now: float) -> np.ndarray:
        epoch = first + int(now * shuffles / 60)
        if epoch not in orders:
            orders[epoch] = keys_by_rank(keys, epoch)
        ranks = np.minimum(np.searchsorted(shares, random.random(BATCH_ROWS)), keys - 1)
        return hashes[orders[epoch][ranks]]

    if paradigm == CENTRIC:
        return VirtualJob(draw, options).run(float(seconds))
    divided = replace(options, executors=CORES, shards=WORKERS * SHARDS)
    return VirtualGroups(draw, divided, REPARTITIONING, paradigm, "flux").run(float(seconds))


def throughput(job: VirtualJob, seconds: int) -> np.ndarray:
    """Return the rows of each second."""
    done = np.array(job.done)
    return np.histogram(done[:, 0], np.arange(seconds + 1.0), weights=done[:, 1])[0]


def measured(keys: int, shuffles: float, like: str, paradigm: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sums over the first orders of the keys."""
    seconds = arguments.seconds
    options = Options(control_period=arguments.period, report_interval=arguments.report, **LIKE[like])
    sums, moves, pauses = np.zeros(3), 0, []
    for number in range(arguments.orders):
        first = number * ORDERS_OF_A_RUN
        job = run(keys, shuffles, first, seconds, options, paradigm)
        epochs = [first + int(second * shuffles / 60) for second in range(WARM_SECONDS, seconds)]
        rates = throughput(job, seconds)
        grouped = isinstance(job, VirtualGroups)
        best = [possible_groups(keys, one) if grouped else possible(keys, one, options.executors) for one in epochs]
        sums += rates[WARM_SECONDS:].sum(), sum(best), sum(possible_static(keys, epoch) for epoch in epochs)
        moves += sum(executor.moves.finished for executor in job.executors)
        pauses += [move.pause for move in job.ended] if isinstance(job, VirtualGroups) else []
        if arguments.seconds_shown:
            show(job, rates, best)
    made = {
        "benchmark": "dynamics-virtual",
        "paradigm": paradigm,
        "like": like,
        "keys": keys,
        "shuffles_per_minute": shuffles,
        "orders": arguments.orders,
        "throughput": round(sums[0] / arguments.orders / (seconds - WARM_SECONDS)),
        "of_possible": round(sums[0] / sums[1], 3),
        "times_static": round(sums[0] / sums[2], 2),
        "possible_times_static": round(sums[1] / sums[2], 2),
        "moves": moves,
    }
    if pauses:
        made |= {"migrations": len(pauses), "median_wait_ms": round(1e3 * float(np.median(pauses)))}
    return made


def show(job: VirtualJob, rates: np.ndarray, best: list[float]) -> None:
    """Print throughput, cores and queues of each second."""
    for snapshot in job.snapshots:
        second = int(snapshot.now)
        if WARM_SECONDS <= second < len(rates):
            executors = snapshot.jobs[0].executors
            cores, queues = [one.total_cores for one in executors], [one.queue for one in executors]
            print(f"{second:4d} s: {rates[second]:6.0f} of {best[second - WARM_SECONDS]:6.0f}, {cores=}, {queues=}")
    print("\n".join(job.decisions))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--shuffles", type=float, nargs="+", default=[0.0, 2.0, 16.0])
    parser.add_argument("--orders", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two ticks of the control loop")
    parser.add_argument("--report", type=float, default=0.5, help="seconds between two reports of a worker")
    parser.add_argument("--like", nargs="+", choices=LIKE, default=["defaults"])
    parser.add_argument("--seconds-shown", action="store_true")
    parser.add_argument("--paradigms", nargs="+", choices=(CENTRIC, *GROUP_STRATEGIES), default=[CENTRIC])
    arguments = parser.parse_args()
    for shuffles, like in itertools.product(arguments.shuffles, arguments.like):
        centric = None
        for paradigm in arguments.paradigms:
            made = measured(arguments.keys, shuffles, like, paradigm, arguments)
            if paradigm == CENTRIC:
                centric = made["throughput"]
            elif centric is not None:
                made["executor_centric_times"] = round(centric / made["throughput"], 2)
            print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
