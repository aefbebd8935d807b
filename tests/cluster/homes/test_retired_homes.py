"""Workers that are homes leave a running job: their executors move first, and the state is exact."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from distributed import Client

import dask_elastic as de

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
ROWS = 20_000
EXECUTORS = 2


def topology():
    """Counts and sums per key, without a sink: that would hold the worker of its executor."""
    made = de.Topology("retired")
    rows = made.source("rows", de.sources.Push(SCHEMA))
    aggregates = {"n": de.aggregate.Count(), "total": de.aggregate.Sum("v")}
    rows.key_by("k").compute(aggregates, name="counted", executors=EXECUTORS, shards=8)
    return made


def homes(job):
    """Return the worker of each executor."""
    return set(job.assignment()["home"])


def test_worker_is_emptied_of_executors_and_closed(small_cluster, wait_until):
    cluster = small_cluster(n_workers=1, threads_per_worker=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = de.submit(topology(), client)
        [first] = client.nthreads()
        cluster.scale(3)
        wait_until(lambda: len(client.nthreads()) == 3, "two workers have joined the cluster")
        leaving, staying = sorted({*client.nthreads()} - {first})
        random = np.random.default_rng(5)
        rows = pa.table({"k": random.integers(0, 50, ROWS), "v": random.integers(-9, 9, ROWS)}, schema=SCHEMA)
        job.send(rows.slice(0, ROWS // 2))
        for index in range(EXECUTORS):
            job.move_executor("counted", index, leaving)
        assert homes(job) == {leaving}
        assert leaving not in cluster.scheduler.workers_to_close(n=3)
        de.retire(leaving, client, timeout="100s", close=True)
        wait_until(lambda: leaving not in client.nthreads(), "the worker has left the cluster")
        assert homes(job) <= {first, staying}
        assert job.status == "running"
        job.send(rows.slice(ROWS // 2))
        job.end_of_input()
        job.wait(timeout=100, progress=False)
        state = job.state("counted").to_arrow().sort_by("k")
        expected = rows.group_by("k").aggregate([("v", "count"), ("v", "sum")]).sort_by("k")
        assert state["n"].to_pylist() == expected["v_count"].to_pylist()
        assert state["total"].to_pylist() == expected["v_sum"].to_pylist()
        moved = [one for listed in job.decisions()["homes"] for one in listed]
        assert [one["target"] for one in moved[:EXECUTORS]] == [leaving] * EXECUTORS
        assert {one["source"] for one in moved[EXECUTORS:]} == {leaving}


def test_dask_retires_a_worker_once_its_executors_have_left(small_cluster, wait_until):
    cluster = small_cluster(n_workers=1, threads_per_worker=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = de.submit(topology(), client)
        [first] = client.nthreads()
        cluster.scale(3)
        wait_until(lambda: len(client.nthreads()) == 3, "two workers have joined the cluster")
        retired, scaled = ({str(one): a for a, one in names(client).items()}[name] for name in "12")
        rows = pa.table({"k": list(range(100)), "v": [1] * 100}, schema=SCHEMA)
        job.send(rows)
        job.move_executor("counted", 0, retired)
        job.move_executor("counted", 1, scaled)
        assert list(client.retire_workers([retired], close_workers=True)) == [retired]
        wait_until(lambda: retired not in client.nthreads(), "the worker has left the cluster")
        assert retired not in homes(job)
        # The first worker has the source, which does not move.
        assert client.retire_workers([first]) == {}
        assert first in client.nthreads()
        assert scaled in homes(job)
        cluster.scale(2)
        cluster.scale(1)
        wait_until(lambda: list(client.nthreads()) == [first], "the cluster has shrunk to the worker with the source")
        assert homes(job) == {first}
        assert job.status == "running"
        job.send(rows)
        job.end_of_input()
        job.wait(timeout=100, progress=False)
        assert job.state("counted").to_arrow()["n"].to_pylist() == [2] * 100
        assert client.retire_workers([first]) != {}


def names(client):
    """Return the name of each worker by its address."""
    return {address: one["name"] for address, one in client.scheduler_info(n_workers=-1)["workers"].items()}
