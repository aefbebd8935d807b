"""Resident memory of the workers over ten minutes of a run with a constant key set.

Prints one JSON line: the sum over the workers per minute, and the growth from minute 2 to the end.

    python benchmarks/memory.py [--minutes 10] [--rate 200000]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time

import psutil
from _stream import batches, stream
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.runtime.protocol.job_calls import Wait

ROWS = 10_000


def resident(pids: list[int]) -> int:
    """Return the resident bytes of the processes."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=200_000)
    arguments = parser.parse_args()
    total = int(arguments.minutes * 60 * arguments.rate)
    topology = de.Topology("memory")
    source = topology.source("stream", de.sources.Iterable(functools.partial(stream, total, ROWS), rate=arguments.rate))
    counted = source.key_by("key").compute(
        {"rows": de.aggregate.Count(), "total": de.aggregate.Sum("value")}, name="per_key"
    )
    counted.sink(de.sinks.Call(len), name="out")
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(batches, ROWS)
        pids = list(client.run(os.getpid).values())
        job = de.submit(topology, client)
        began = time.time()
        seen: list[int] = []
        while job.status == "running":
            job._ask(Wait(job.name, max(0.1, began + 60 * (len(seen) + 1) - time.time())))
            if time.time() >= began + 60 * (len(seen) + 1):
                seen.append(resident(pids))
        moves = int(job.metrics()["moves"].sum())
    line = {
        "benchmark": "memory",
        "rate": arguments.rate,
        "minutes": arguments.minutes,
        "moves": moves,
        "rss_mib": [round(value / 2**20, 1) for value in seen],
        "growth_from_minute_2": round(seen[-1] / seen[1] - 1, 4) if len(seen) > 2 else None,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
