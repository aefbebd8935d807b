"""Completion time of four computes in a row, none, two, three or all of which run in one task (Enorm, figure 16).

Prints one JSON line per setting: the seconds of the job beyond those of an empty one, rows per second, CPU seconds of
the workers, and how many times as long, and as much CPU time, the job takes without fusion. Each compute is an
aggregation by one integer key, whose results the next one aggregates. Two worker processes of one thread; each
component has one executor with one core. The settings of one batch size alternate, and the fastest of their rounds
counts.

    python benchmarks/fusion.py [--batch 200 20000] [--seconds 4] [--rounds 2] [--keys 100000]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from _cpu import ClusterCpu
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.topology import Source

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
    """Return different batches of some rows."""
    random = np.random.default_rng(rows)
    return [
        pa.record_batch({"key": random.integers(0, keys, rows), "value": random.integers(0, 1000, rows)})
        for _ in range(max(2, min(64, 2**18 // rows)))
    ]


def chain(batches: list[pa.RecordBatch], count: int) -> de.Topology:
    """Return four aggregations in a row."""
    topology = de.Topology("chain")
    stream, read = topology.source("rows", Repeated(batches, count)), "value"
    for name in NAMES:
        stream = stream.key_by("key").compute({f"{name}_total": agg.Sum(read)}, name=name, executors=1)
        read = f"{name}_total"
    stream.sink(de.sinks.Call(len), name="out")
    return topology


def run(client: Client, batches: list[pa.RecordBatch], count: int, fused: int) -> tuple[float, float]:
    """Return the wall and CPU seconds of a job."""
    topology = chain(batches, count)
    members = FUSED[fused]
    pairs = [*pairwise(members)]
    cores = {name: 1 for name in NAMES if name not in members[1:]}
    used = ClusterCpu(client)
    began = time.perf_counter()
    job = de.submit(topology, client, fuse=pairs, cores=cores)
    job.wait(progress=False)
    spent = time.perf_counter() - began, used.seconds()
    job.forget()
    return spent


def batches_for(client: Client, batches: list[pa.RecordBatch], seconds: float, empty: float) -> int:
    """Return with how many batches a job without fusion takes about some CPU seconds more than an empty one."""
    count = 50
    while (spent := run(client, batches, count, 0)[1] - empty) < seconds / 4:
        count *= 3
    return int(count * max(1.0, seconds / spent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[200, 20_000])
    parser.add_argument("--seconds", type=float, default=4.0, help="of CPU that a job without fusion takes, about")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keys", type=int, default=100_000)
    options = parser.parse_args()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for rows in options.batch:
            batches = make_batches(rows, options.keys)
            # What a job takes that has hardly any rows is left out.
            empty = tuple(map(min, zip(*(run(client, batches, 1, 0) for _ in range(3)), strict=True)))
            count = batches_for(client, batches, options.seconds, empty[1])
            taken = [{fused: run(client, batches, count, fused) for fused in FUSED} for _ in range(options.rounds)]
            fastest = {
                fused: tuple(min(round_[fused][one] for round_ in taken) - empty[one] for one in (0, 1))
                for fused in FUSED
            }
            for fused, (seconds, cpu) in fastest.items():
                found = {
                    "rows_per_batch": rows,
                    "fused": fused,
                    "seconds": round(seconds, 2),
                    "rows_per_s": round(rows * count / seconds),
                    "cpu_seconds": round(cpu, 2),
                    "speedup": round(fastest[0][0] / seconds, 2),
                    "cpu_ratio": round(fastest[0][1] / cpu, 2),
                }
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
