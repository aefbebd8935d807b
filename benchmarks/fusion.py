"""Sustained speed of four computes in a row, none, two, three or all of which run in one task (Enorm, figure 16).

Each compute is an aggregation by one integer key; its results, one for almost every row, are the rows of the next one.
On two workers of one thread, the paper's setting, computes that follow one another are on different workers, so that
each result crosses the network; `crossing` is the share of the exchanges between computes that do. On one worker of two
threads no result crosses. A component has one executor with one core. One that has all four computes is also measured
with two, so that it may use both cores, as the four components apart do.

Prints one JSON line per setting: seconds, rows per second, CPU seconds of the workers, and how many times as long, and
as much CPU time, the job takes without fusion. All are differences between a job and one of a quarter of its rows,
which has all keys: neither the start nor the first rows of the keys count. The settings alternate; medians of the
rounds count.

    python benchmarks/fusion.py [--batch 200 20000] [--workers 2 1] [--seconds 6] [--rounds 3] [--keys 100000]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from _cpu import ClusterCpu
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.topology import Source

CORES = 2
NAMES = ("first", "second", "third", "fourth")
FUSED = {0: [], 2: [*NAMES[:2]], 3: [*NAMES[:3]], 4: [*NAMES]}


class Repeated(Source):
    """The same batches, some number of times.

    Parameters
    ----------
    batches : list of RecordBatch
        The batches.
    count : int
        How many batches to yield.
    """

    def __init__(self, batches: list[pa.RecordBatch], count: int):
        self.batches, self.count = batches, count

    def read(self, context: Any) -> Iterator[tuple[pa.RecordBatch, object]]:
        for number in range(context.offset or 0, self.count):
            yield self.batches[number % len(self.batches)], number + 1


def make_batches(rows: int, keys: int) -> list[pa.RecordBatch]:
    """Return different batches of some rows; together they have most of the keys."""
    random = np.random.default_rng(rows)
    return [
        pa.record_batch({"key": random.integers(0, keys, rows), "value": random.integers(0, 1000, rows)})
        for _ in range(max(2, -(-3 * keys // rows)))
    ]


def chain(batches: list[pa.RecordBatch], count: int, executors: int = 1) -> de.Topology:
    """Return four aggregations in a row."""
    topology = de.Topology("chain")
    stream, read = topology.source("rows", Repeated(batches, count)), "value"
    for name in NAMES:
        stream = stream.key_by("key").compute({f"{name}_total": agg.Sum(read)}, name=name, executors=executors)
        read = f"{name}_total"
    stream.sink(de.sinks.Call(len), name="out")
    return topology


class Spent(NamedTuple):
    """Wall and CPU seconds of a job, and the share of the exchanges between its computes that cross workers."""

    seconds: float
    cpu: float
    crossing: float


class Setting(NamedTuple):
    """How many computes run in one task, and the executors of each component."""

    fused: int
    executors: int


SETTINGS = (Setting(0, 1), Setting(2, 1), Setting(3, 1), Setting(4, 1), Setting(4, CORES))


def run(client: Client, batches: list[pa.RecordBatch], count: int, setting: Setting) -> Spent:
    """Run a job."""
    members = FUSED[setting.fused]
    topology = chain(batches, count, setting.executors)
    components = [name for name in NAMES if name not in members[1:]]
    used = ClusterCpu(client)
    began = time.perf_counter()
    job = de.submit(topology, client, fuse=[*pairwise(members)], cores=dict.fromkeys(components, 1))
    job.wait(progress=False)
    spent = time.perf_counter() - began, used.seconds()
    homes = job.assignment().drop_duplicates("operator").set_index("operator")["home"]
    between = [homes[one] != homes[other] for one, other in pairwise(components)]
    job.forget()
    return Spent(*spent, sum(between) / max(1, len(between)))


def batches_for(client: Client, batches: list[pa.RecordBatch], seconds: float) -> int:
    """Return of how many batches three quarters take about some CPU seconds in a job without fusion."""
    run(client, batches, 1, SETTINGS[0])
    # A quarter has all keys.
    count = 4 * len(batches)
    while (spent := sustained(client, batches, count, SETTINGS[0]).cpu) < seconds / 2:
        count *= 2
    return int(count * max(1.0, seconds / spent))


def sustained(client: Client, batches: list[pa.RecordBatch], count: int, setting: Setting) -> Spent:
    """Return what a job takes beyond one of a quarter of its rows."""
    whole, part = (run(client, batches, number, setting) for number in (count, count // 4))
    return Spent(whole.seconds - part.seconds, whole.cpu - part.cpu, whole.crossing)


def measure(client: Client, rows: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what is found with batches of some rows."""
    batches = make_batches(rows, options.keys)
    count = batches_for(client, batches, options.seconds)
    taken = [[sustained(client, batches, count, setting) for setting in SETTINGS] for _ in range(options.rounds)]
    medians = [Spent(*np.median(rounds, axis=0)) for rounds in zip(*taken, strict=True)]
    apart = medians[0]
    for setting, spent in zip(SETTINGS, medians, strict=True):
        yield {
            "rows_per_batch": rows,
            **setting._asdict(),
            "seconds": round(spent.seconds, 2),
            "rows_per_s": round(rows * (count - count // 4) / spent.seconds),
            "cpu_seconds": round(spent.cpu, 2),
            "speedup": round(apart.seconds / spent.seconds, 2),
            "cpu_ratio": round(apart.cpu / spent.cpu, 2),
            "crossing": round(spent.crossing, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[200, 20_000])
    parser.add_argument("--workers", type=int, nargs="+", choices=(1, 2), default=[2, 1])
    parser.add_argument("--seconds", type=float, default=6.0, help="of CPU that a job without fusion takes, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=100_000)
    options = parser.parse_args()
    for workers in options.workers:
        with (
            LocalCluster(n_workers=workers, threads_per_worker=CORES // workers, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            for rows in options.batch:
                for found in measure(client, rows, options):
                    print(json.dumps({"workers": workers, **found}), flush=True)


if __name__ == "__main__":
    main()
