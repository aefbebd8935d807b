"""Adds and removes cores, and moves a shard by hand, while a job runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from dask.distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg

ROWS = 120_000


def build(rows: pa.Table) -> de.Topology:
    topology = de.Topology("shard-moves")
    source = topology.source("numbers", de.sources.Arrow(rows, rate=15_000))
    source.key_by("key").compute({"count": agg.Count(), "sum": agg.Sum("value")}, name="sums", executors=1, shards=16)
    return topology


def show(job: de.Job, title: str) -> None:
    print(f"\n{title}")
    for task in job.assignment().itertuples():
        where = "another worker" if task.remote else "its home"
        print(f"  task {task.task} on {where}: {len(task.shards)} shards {task.shards}")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within 20 s: {what}")
        time.sleep(0.05)


def move_one(job: de.Job) -> int:
    """Move a shard from task 0 to task 1; if the balancer is moving it, the move is refused and another is tried."""
    for shard in job.assignment()["shards"][0]:
        try:
            job.move_shard("sums", shard, task=1)
        except de.ElasticError as refusal:
            print(f"  refused: {refusal}")
        else:
            return shard
    raise RuntimeError("no shard of task 0 could be moved")


def change_cores_and_move_shard(job: de.Job) -> None:
    show(job, "Initially, on one core:")
    job.set_cores("sums", 2)
    wait_until(lambda: len(job.assignment()) == 2 and job.metrics()["moves"].sum() > 0, "a second core")
    show(job, "With a second core, on another worker:")
    before = job.metrics()["moves"].sum()
    shard = move_one(job)
    wait_until(lambda: job.metrics()["moves"].sum() > before, f"shard {shard} moves to task 1")
    show(job, f"After moving shard {shard} by hand:")
    job.set_cores("sums", 1)
    wait_until(lambda: len(job.assignment()) == 1, "one core again")
    show(job, "After removing the second core:")


def main() -> int:
    random = np.random.default_rng(11)
    rows = pa.table({"key": random.integers(0, 500, ROWS), "value": random.integers(-100, 100, ROWS)})
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        # By default the other worker gets shards only if there is enough work.
        job = de.submit(build(rows), client, cores={"sums": 1}, light_load=0)
        change_cores_and_move_shard(job)
        job.wait(timeout=60)
        metrics = job.metrics()
        found = job.state("sums").to_pandas().set_index("key").sort_index()
    expected = rows.to_pandas().groupby("key")["value"].agg(["count", "sum"])
    right = bool((found == expected).all(axis=None))
    print(f"\n{metrics['moves'].sum()} moves, {metrics['moves_across'].sum()} of them between workers; "
          f"the sums are {'right' if right else 'WRONG'}")  # fmt: skip
    return 0 if right and metrics["moves_across"].sum() else 1


if __name__ == "__main__":
    sys.exit(main())
