"""Over how many tasks of a worker the shards of an executor are spread."""

from __future__ import annotations

import re
import time

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de

SCHEMA = pa.schema({"key": pa.int64(), "seconds": pa.float64()})


def waited(batch):
    """Wait for something else, as for a database."""
    seconds = batch["seconds"].to_numpy()
    time.sleep(seconds.sum())
    return seconds


def rows(seconds):
    return pa.table({"key": np.arange(100), "seconds": np.full(100, seconds / 100)}, schema=SCHEMA)


def submitted(client, aggregate, **options):
    """Run a job with two cores at the home of its executor."""
    topology = de.Topology("gathers")
    keyed = topology.source("rows", de.sources.Push(SCHEMA)).key_by("key")
    keyed.compute({"seconds": aggregate}, name="sums", executors=1, shards=16)
    job = de.submit(topology, client, cores={"sums": 2}, latency_target=None, **options)
    assert not job.assignment()["remote"].any()
    return job


def shards_of(job):
    return sorted(map(len, job.assignment()["shards"]))


def finished(job):
    job.end_of_input("rows")
    job.wait(timeout=200, progress=False)
    return job.state("sums").to_pandas()["seconds"]


def test_aggregates_use_one_task_until_they_wait_for_something(client, wait_until):
    job = submitted(client, de.aggregate.Sum(waited, columns=["seconds"]))
    job.send(rows(0.0), "rows")
    assert shards_of(job) == [0, 16]
    sent = 1

    def is_spread():
        nonlocal sent
        job.send(rows(0.05), "rows")
        sent += 1
        return shards_of(job)[0] > 4

    wait_until(is_spread, "both tasks have shards")
    assert finished(job).sum() == pytest.approx(0.05 * (sent - 1))


def test_aggregates_use_all_tasks_if_shards_are_not_to_gather(client):
    job = submitted(client, de.aggregate.Sum("seconds"), gather_shards=False)
    assert shards_of(job) == [8, 8]
    job.send(rows(1.0), "rows")
    assert finished(job).sum() == pytest.approx(1.0)


def test_tasks_of_cores_that_come_and_go_leave_nothing_behind(client, wait_until, threads_of_jobs):
    def left():
        import gc

        from dask_elastic.executor.drivers.executor_driver import ExecutorDriver
        from dask_elastic.runtime.transport.doorbell import Doorbell

        gc.collect()
        found = gc.get_objects()
        remote = [len(one._node_of) for one in found if isinstance(one, ExecutorDriver)]
        return sum(isinstance(one, Doorbell) for one in found), sum(remote)

    job = submitted(client, de.aggregate.Sum("seconds"))
    job.send(rows(0.0), wait=True)
    home = job.assignment()["home"][0]
    other = next(address for address in client.nthreads() if address != home)

    def threads_of_tasks():
        return [name for name in threads_of_jobs(client) if re.search(r"sums\[0\]-(task|remote)-\d+$", name)]

    def change():
        job.set_cores("sums", {home: 2, other: 2})
        job.set_cores("sums", {home: 1})
        wait_until(lambda: len(job.assignment()) == 1, "three tasks have ended")
        # Until then, their threads keep what they have used.
        wait_until(lambda: len(threads_of_tasks()) == 1, "their threads have ended")

    change()
    before = client.run(left)
    for _ in range(3):
        change()
    wait_until(lambda: client.run(left) == before, f"no more is left of tasks that have ended than {before}", 60)
    job.end_of_input()
    job.wait(timeout=100, progress=False)
