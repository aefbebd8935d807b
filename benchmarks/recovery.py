"""Time from the kill of a worker to the first replayed row, and correctness of the result.

An executor at home on one worker sends a steady stream to its remote tasks on other workers. These are killed one after
the other (SIGKILL; Dask's nanny restarts them, and they get tasks again) while rows are in flight. At the end, state
and outputs are compared with those of one process. Prints one JSON line: kills survived, whether the result is equal,
and p50, p99 and maximum of the seconds from the kill (and, as the library reports it, from its detection) to the first
replayed row.

    python benchmarks/recovery.py [--kills 30] [--workers 3] [--rate 20000] [--flush 1s]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import numpy as np
import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.vocab.errors import NodeLost, PlanningError

KEYS = 500
STRIDE = 7919
BATCH = 500
SERVICE_SECONDS = 20e-6
PATIENCE = 60.0
STATE = dict.fromkeys(("faults", "count", "sum", "last"), pa.int64())
SETTINGS = {"elastic.control-period": "200ms", "distributed.deploy.lost-worker-timeout": "1 hour"}
"""Dask's local cluster removes a killed worker permanently if it is not back within some seconds."""

SCHEMA = pa.schema({"key": pa.int64(), "number": pa.int64()})


def numbered() -> Iterator[pa.RecordBatch]:
    """Yield rows with increasing numbers, round-robin over the keys."""
    start = 0
    while True:
        place = np.arange(start, start + BATCH)
        yield pa.record_batch([place * STRIDE % KEYS, place], schema=SCHEMA)
        start += BATCH


def follow(rows: pa.RecordBatch, state: Any) -> pa.RecordBatch:
    """Count and sum the numbers of each key, and count those that do not increase."""
    time.sleep(SERVICE_SECONDS * rows.num_rows)
    order = np.argsort(state.ordinals, kind="stable")
    keys, number = state.ordinals[order], rows.column("number").to_numpy()[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    before = np.concatenate([[-1], number[:-1]])
    before[first] = state.get("last", default=-1)[keys[first]]
    wrong = np.bincount(keys, weights=number <= before, minlength=len(state)).astype(np.int64)
    state.set("faults", state.get("faults") + wrong)
    state.set("count", state.get("count") + np.bincount(keys, minlength=len(state)))
    state.set("sum", state.get("sum") + np.add.reduceat(number, first))
    state.set("last", number[np.append(first[1:], len(number)) - 1])
    return rows


def wait_for(found: Callable[[], Any], what: str) -> Any:
    """Poll until there is a result."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.02)
    return answer


def submit(client: Client, rate: float, flush: str) -> de.Job:
    """Start the job."""
    topology = de.Topology("recovery")
    rows = topology.source("rows", de.sources.Iterable(numbered, rate=rate))
    followed = rows.key_by("key").compute(follow, name="followed", state=STATE, executors=1, shards=64)
    followed.sink(de.sinks.Collect(), name="out")
    return de.submit(topology, client, latency_target=None, flush_interval=flush, light_load=0)


def spread(job: de.Job, client: Client, home: str, workers: int) -> list[str]:
    """Wait until all other workers are back, give the executor one core on each, and return them."""

    def given() -> list[str] | None:
        there = set(client.nthreads())
        guests = sorted({node for node in job._describe().nodes if node} & there - {home})
        if len(guests) < workers - 1:
            return None
        try:
            job.set_cores("followed", dict.fromkeys(guests, 1))
        except (PlanningError, NodeLost):
            return None
        tasks = job.assignment()
        return guests if set(tasks["node"]) == set(guests) and tasks["shards"].map(len).min() > 0 else None

    return list(wait_for(given, "each worker has a task and each task a shard"))


def kill(job: de.Job, client: Client, guest: str, losses: int) -> float | None:
    """Kill a busy worker; returns the seconds to the first replayed row, if there is one."""
    pid = client.run(os.getpid, workers=[guest])[guest]
    os.kill(pid, signal.SIGKILL)
    killed = time.time()

    def recovered() -> list[Any]:
        table = job.recoveries()
        over = len(table) > losses and bool(table["ended"].notna().all())
        return [table.iloc[-1]] if over else []

    [record] = wait_for(recovered, "the loss is made good")
    return float(record["first"] - killed) if record["rows"] else None


def is_equal(job: de.Job) -> bool:
    """Compare with what one process makes of the rows that were read."""
    read = job._describe().rows_read
    place = np.arange(read)
    keys = place * STRIDE % KEYS
    state = job.state("followed").to_pandas().set_index("key").sort_index()
    out = job.collect("out")
    numbers, at = out["number"].to_numpy(), out["key"].to_numpy()
    order = np.lexsort((np.arange(len(at)), at))
    rises = np.diff(numbers[order]) > 0
    return bool(
        state["faults"].sum() == 0
        and state["count"].tolist() == np.bincount(keys, minlength=KEYS).tolist()
        and state["sum"].tolist() == np.bincount(keys, weights=place, minlength=KEYS).astype(int).tolist()
        and np.array_equal(np.sort(numbers), place)
        and (rises | (np.diff(at[order]) > 0)).all()
    )


def run(client: Client, arguments: argparse.Namespace) -> dict[str, Any]:
    """Kill workers one after the other, and measure."""
    job = submit(client, arguments.rate, arguments.flush)
    home = job.assignment()["home"][0]
    took = []
    for number in range(arguments.kills):
        guests = spread(job, client, home, arguments.workers)
        took.append(kill(job, client, guests[number % len(guests)], number))
    job.drain()
    measured = job.metrics().iloc[0]
    replayed = [seconds for seconds in took if seconds is not None]
    return {
        "kills": arguments.kills,
        "survived": int(measured["recovered"]),
        "equal": is_equal(job),
        "rows": int(measured["rows"]),
        "replays": len(replayed),
        "rows_replayed": int(job.recoveries()["rows"].sum()),
        "kill_to_first_p50_s": float(np.quantile(replayed, 0.5)),
        "kill_to_first_p99_s": float(np.quantile(replayed, 0.99, method="higher")),
        "kill_to_first_max_s": max(replayed),
        "noticed_to_first_p50_s": measured["recovery_p50"],
        "noticed_to_first_p99_s": measured["recovery_p99"],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=20_000.0)
    parser.add_argument("--flush", default="1s")
    arguments = parser.parse_args()
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=arguments.workers, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL"
        ) as cluster,
        Client(cluster) as client,
    ):
        settings = {"benchmark": "recovery", "workers": arguments.workers, "rate": arguments.rate}
        print(json.dumps({**settings, "flush": arguments.flush, **run(client, arguments)}), flush=True)


if __name__ == "__main__":
    main()
