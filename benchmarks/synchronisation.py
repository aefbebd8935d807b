"""The pause of a synchronised move of key groups, by the number of workers, executors and upstream instances.

The coordinator calls all workers for each step. Each upstream instance sends an end mark to each executor, each
executor is drained, and each that gives groups sends a fence to all workers (Elasticutor, Figure 12a: synchronisation
in its resource-centric baseline grows with the number of upstream executors). State and load are next to nothing, so
that what remains is the synchronisation itself. One key group moves between two workers, to and fro; all workers share
the processors of this machine.

Prints one JSON line per setting, with the shortest and the median pause that the job reports, and for each number of
workers a line that fits the shortest ones, which other processes disturb least: a constant, and what each executor and
each end mark (instances times executors) adds. Workers that have no processor of their own wait for each other.

    python benchmarks/synchronisation.py [--workers 2 8] [--executors 8 32] [--instances 1 32] [--moves 20]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.topology.pace import SLICE_SECONDS, rows_within

GROUPS = 64
RATE = 500.0
"""Rows per second of all instances."""


def rows(rate: float, instance: int = 0, instances: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield random keys without an end."""
    random = np.random.default_rng(instance)
    while True:
        yield pa.record_batch({"key": random.integers(0, 10 * GROUPS, rows_within(rate, SLICE_SECONDS, 1_000))})


def measured(client: Client, executors: int, instances: int, moves: int) -> np.ndarray:
    """Return the pauses in milliseconds."""
    topology = de.Topology("synchronisation")
    made = functools.partial(rows, RATE / instances)
    source = topology.source("rows", de.sources.Iterable(made, rate=RATE, parallel=instances))
    counts = {"rows": de.aggregate.Count()}
    source.key_by("key").compute(counts, name="per_key", executors=executors, shards=GROUPS)
    job = de.submit(topology, client, paradigm="resource-centric", latency_target=None)
    while not job.metrics()["rows"].sum() > RATE:
        time.sleep(0.1)
    placed = job.assignment()
    first = placed.iloc[0]
    there = int(placed[placed["home"] != first["home"]]["executor"].iloc[0])
    group = [int(first["shards"][0])]
    pauses = [job.move_groups("per_key", group, target, "synchronised").pause for target in [there, 0] * moves]
    job.stop()
    # The first ones make connections.
    return 1e3 * np.array(pauses[2:])


def fitted(settings: list[tuple[int, int]], pauses: list[float]) -> dict[str, float]:
    """Return what pauses in milliseconds consist of, by least squares."""
    terms = np.array([[1.0, executors, executors * instances] for executors, instances in settings])
    constant, executor, mark = np.linalg.lstsq(terms, np.array(pauses), rcond=None)[0].tolist()
    per = {"per_executor_us": round(1e3 * executor, 1), "per_end_mark_us": round(1e3 * mark, 1)}
    return {"constant_ms": round(constant, 2), **per}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--executors", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--moves", type=int, default=20, help="to and fro, for each setting")
    given = parser.parse_args()
    settings = [*itertools.product(given.executors, given.instances)]
    for workers in given.workers:
        shortest = []
        for executors, instances in settings:
            threads = max(executors // workers, 1)
            with (
                LocalCluster(n_workers=workers, threads_per_worker=threads, dashboard_address=None) as cluster,
                Client(cluster) as client,
            ):
                pauses = measured(client, executors, instances, given.moves)
            shortest.append(float(pauses.min()))
            line = {"benchmark": "synchronisation", "workers": workers, "executors": executors}
            line |= {"instances": instances, "shortest_pause_ms": round(shortest[-1], 2)}
            print(json.dumps({**line, "median_pause_ms": round(float(np.median(pauses)), 2)}), flush=True)
        if len(settings) > 2:
            print(json.dumps({"benchmark": "synchronisation", "workers": workers, **fitted(settings, shortest)}))


if __name__ == "__main__":
    main()
