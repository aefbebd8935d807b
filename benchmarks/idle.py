"""CPU time of an idle job: workers and scheduler with it, less the same without it.

Prints one JSON line, in cores: `bare` is the cluster before dask_elastic is installed, `without` and `with` are medians
of alternated runs without a job and with a job whose source gets no rows, `beyond` is the median difference.

    python benchmarks/idle.py [--executors 20] [--workers 2] [--threads 2] [--seconds 20] [--settle 15] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de


def cores(client: Client, seconds: float) -> float:
    """Return the CPU seconds per second of the workers, and of this process with the scheduler."""
    began, spent = time.perf_counter(), cpu(client)
    time.sleep(seconds)
    return (cpu(client) - spent) / (time.perf_counter() - began)


def cpu(client: Client) -> float:
    """Return the CPU seconds of the workers and of this process."""
    return sum(client.run(time.process_time).values()) + time.process_time()


def idle_job(client: Client, executors: int) -> de.Job:
    """Start a job that a program feeds, with some executors, and send it a row."""
    topology = de.Topology("idle")
    rows = topology.source("rows", de.sources.Push(pa.schema({"k": pa.int64()})))
    counted = rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted", executors=executors)
    counted.sink(de.sinks.Call(len), name="out")
    job = de.submit(topology, client)
    job.send(pa.table({"k": range(1_000)}))
    return job


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--settle", type=float, default=15, help="seconds without rows before a measurement begins")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    without, with_job = [], []
    with (
        LocalCluster(
            n_workers=arguments.workers, threads_per_worker=arguments.threads, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        time.sleep(arguments.settle)
        bare = cores(client, arguments.seconds)
        for _ in range(arguments.runs):
            job = idle_job(client, arguments.executors)
            time.sleep(arguments.settle)
            with_job.append(cores(client, arguments.seconds))
            job.forget()
            time.sleep(1)
            without.append(cores(client, arguments.seconds))
    line = {
        "benchmark": "idle",
        "executors": arguments.executors,
        "workers": arguments.workers,
        "bare": round(bare, 4),
        "without": round(statistics.median(without), 4),
        "with": round(statistics.median(with_job), 4),
        "beyond": round(statistics.median(a - b for a, b in zip(with_job, without, strict=True)), 4),
        "runs": [[round(a, 4), round(b, 4)] for a, b in zip(with_job, without, strict=True)],
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
