"""Pause of a shard during its move, and the latency of the other shards.

An executor of two tasks keeps 32 KiB of state per shard. A steady stream loads it to a fraction ρ of its measured
capacity (service times are emulated by sleeping, so that two cores stand for any number), while shards move
continuously: within the node, or to a remote task and back. Half of the shards move, alternately from either task, so
that the tasks' loads stay equal. Prints one JSON line per setting: p50 and p99 of the pauses, and the latencies of the
moving and the other shards, from alternating runs with and without moves. Runs without moves issue the same commands
with the current owner as the target.

    python benchmarks/shard_moves.py [--seconds 12] [--runs 5] [--every 0.1] [--rho 0.5 0.7 1.1]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
from typing import Any

import numpy as np
from _timed_rows import (
    MAY_MOVE,
    SERVICE_SECONDS,
    SHARDS,
    STAYS,
    WARM_SECONDS,
    emulated,
    forget_latencies,
    latencies,
    timed_rows,
)
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.meters import LatencyHistogram
from dask_elastic.runtime.protocol.job_calls import Wait

INBOX = 0.005


def run(client: Client, seconds: float, rate: float, across: bool, moving: bool, every: float) -> dict[str, Any]:
    """Run at a rate in rows per second, and begin a move every `every` seconds."""
    client.run(forget_latencies)
    topology = de.Topology("shard-moves")
    source = topology.source("stream", de.sources.Iterable(functools.partial(timed_rows, seconds, rate), rate=rate))
    total = de.aggregate.Sum(emulated, columns=["value", "due", "kind"])
    source.key_by("key").compute(
        {"rows": de.aggregate.Count(), "total": total}, name="per_key", executors=1, shards=SHARDS
    )
    # No balancing: only the requested moves are measured.
    job = de.submit(topology, client, cores={"per_key": 2}, inbox_time=INBOX, balance_interval="1h", light_load=0)
    if across:
        home = job.assignment()["home"][0]
        other = next(n for n in client.nthreads() if n != home)
        job.set_cores("per_key", {home: 1, other: 1})
    began = time.time()
    while job.status == "running":
        if time.time() < began + WARM_SECONDS:
            job._ask(Wait(job.name, 0.2))
        else:
            _move_on(job, moving, every)
    moves = job.moves()
    measured = job.metrics().iloc[0]
    job.forget()
    pauses = moves["pause"][moves["ended"] > began + WARM_SECONDS].to_numpy() * 1e3
    return {
        "moves": len(moves),
        "across": int(moves["across_nodes"].sum()),
        "pause_p50_ms": _quantile(pauses, 0.5),
        "pause_p99_ms": _quantile(pauses, 0.99),
        "state_bytes_per_shard": measured["state_bytes"] / SHARDS,
        "service_rate": measured["service_rate"],
    } | _latencies(client)


def _move_on(job: de.Job, moving: bool, every: float) -> None:
    """Swap the owners of the shards that may move, one after the other; the tasks' loads stay equal.

    Without moving, the target is the current owner: the commands cost the same, and no shard pauses.
    """
    placed = job.assignment()
    tasks = [int(task) for task in placed["task"]]
    owned = [[int(shard) for shard in shards if shard < SHARDS // 2] for shards in placed["shards"]]
    for pair in itertools.zip_longest(*owned):
        for position, shard in enumerate(pair):
            if shard is not None:
                job.move_shard("per_key", shard, tasks[1 - position if moving else position])
                if job._ask(Wait(job.name, every)).status.value != "running":
                    return


def _quantile(values: Any, q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None


def _latencies(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, name in ((STAYS, "others"), (MAY_MOVE, "moved")):
        histogram = LatencyHistogram()
        for of_worker in client.run(latencies).values():
            histogram.merge(of_worker[kind])
        found |= {
            f"{name}_p50_ms": (histogram.quantile(0.5) or 0) * 1e3,
            f"{name}_p99_ms": (histogram.quantile(0.99) or 0) * 1e3,
        }
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--every", type=float, default=0.1, help="seconds between the starts of two moves")
    parser.add_argument("--rho", type=float, nargs="+", default=[0.5, 0.7, 1.1])
    parser.add_argument("--only", choices=("within", "across"), help="only moves within a node, or only across nodes")
    arguments = parser.parse_args()
    for across in {"within": (False,), "across": (True,), None: (False, True)}[arguments.only]:
        with (
            LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            # The duration of a sleep depends on the machine and on the batch size, and so on the rate: the capacity
            # is measured at about the rate of the run.
            capacity = 2 * run(client, 5, 1 / SERVICE_SECONDS, across, True, arguments.every)["service_rate"]
            for rho in arguments.rho:
                made = [
                    tuple(
                        run(client, arguments.seconds, rho * capacity, across, moving, arguments.every)
                        for moving in (True, False)
                    )
                    for _ in range(arguments.runs)
                ]
                print(json.dumps(_line(made, across, rho, capacity) | {"every_s": arguments.every}), flush=True)


def _line(made: list[tuple[dict[str, Any], ...]], across: bool, rho: float, capacity: float) -> dict[str, Any]:
    """Return medians over the runs; `without` are those of the runs without moves."""

    def median(name: str, moving: bool = True) -> float:
        return round(statistics.median(pair[0 if moving else 1][name] for pair in made), 3)

    line: dict[str, Any] = {"benchmark": "shard-moves", "across_nodes": across, "rho": rho, "runs": len(made)}
    line |= {"inbox_ms": INBOX * 1e3, "capacity": round(capacity)}
    line |= {
        name: median(name) for name in ("moves", "across", "pause_p50_ms", "pause_p99_ms", "state_bytes_per_shard")
    }
    line["pause_p50_ms_of_runs"] = [round(moving["pause_p50_ms"], 3) for moving, _ in made]
    line["rho_measured"] = round(rho * capacity / 2 / median("service_rate"), 3)
    for name in ("others_p50_ms", "others_p99_ms", "moved_p50_ms", "moved_p99_ms"):
        line |= {name: median(name), f"{name}_without": median(name, moving=False)}
    return line


if __name__ == "__main__":
    main()
