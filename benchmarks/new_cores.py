"""How soon logic that waits uses new cores on another worker: rows per second in each half second after it got them.

An executor of aggregates with an emulated service time (7 ms per row by sleeping; 2 workers of 4 threads) has one core
at its home, and more rows than it can process. Then it gets four cores on the other worker in exchange.

    python benchmarks/new_cores.py [--runs 3] [--seconds 4]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from _emulated import serve
from distributed import Client, LocalCluster

import dask_elastic as de

SERVICE = 0.007
RATE = 400.0
CORES = 4
KEYS = 400
WARM_SECONDS = 3.0
LOOK_SECONDS = 0.5
SCHEMA = pa.schema({"key": pa.int64(), "value": pa.int64()})


def arrivals() -> Iterator[pa.RecordBatch]:
    """Yield batches of a few rows."""
    rng = np.random.default_rng(1)
    while True:
        yield pa.record_batch([rng.integers(0, KEYS, 5), np.ones(5, dtype=np.int64)], schema=SCHEMA)


def served(batch: pa.RecordBatch) -> pa.Array:
    """Return the values after the service time of the rows."""
    serve(batch.num_rows, SERVICE)
    return batch["value"]


def submitted(client: Client, name: str) -> de.Job:
    """Submit the job with one core at home."""
    topology = de.Topology(name)
    rows = topology.source("rows", de.sources.Iterable(arrivals, schema=SCHEMA, rate=RATE))
    totals = {"rows": de.aggregate.Count(), "total": de.aggregate.Sum(served, columns=["value"])}
    rows.key_by("key").compute(totals, name="served", executors=1, shards=64)
    return de.submit(topology, client, cores={"served": 1})


def measured(client: Client, name: str, seconds: float) -> list[int]:
    """Return the rows per second in each half second after the executor got its cores."""
    job = submitted(client, name)
    time.sleep(WARM_SECONDS)
    home = job.explain().to_pandas()["home"].iloc[0]
    other = next(address for address in client.scheduler_info()["workers"] if address != home)
    began, before = time.perf_counter(), processed(job)
    job.set_cores("served", {other: CORES}, executor=0)
    speeds = []
    while len(speeds) < seconds / LOOK_SECONDS:
        time.sleep(LOOK_SECONDS)
        now, rows = time.perf_counter(), processed(job)
        speeds.append(round((rows - before) / (now - began)))
        began, before = now, rows
    job.stop()
    job.forget()
    return speeds


def processed(job: de.Job) -> int:
    """Return the rows processed so far."""
    return int(job.metrics()["rows"].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    workers = {"n_workers": 2, "threads_per_worker": CORES, "dashboard_address": ":0"}
    with LocalCluster(**workers) as cluster, Client(cluster) as client:
        for run in range(given.runs):
            speeds = measured(client, f"run-{run}", given.seconds)
            print(json.dumps({"benchmark": "new_cores", "possible": round(CORES / SERVICE), "rows_per_second": speeds}))


if __name__ == "__main__":
    main()
