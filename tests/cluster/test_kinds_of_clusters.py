"""Clusters with TLS, of threads in one process, and fresh ones of several workers."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from counting_jobs import NUMBERS, RUN, SCHEMA, assert_runs, counting
from distributed import Client
from distributed.security import Security

import dask_elastic as de
from dask_elastic_plugins import install as installing


def test_tls_cluster_runs_job_over_several_nodes(small_cluster, wait_until):
    security = Security.temporary()
    with Client(small_cluster(n_workers=2, security=security), set_as_default=False) as client:
        assert client.scheduler.address.startswith("tls://")
        job = de.submit(counting(de.sources.Push(SCHEMA), executors=1), client, name="remote")
        nodes = list(client.nthreads())
        job.set_cores("counted", dict.fromkeys(nodes, 1))
        wait_until(lambda: job.assignment()["remote"].any(), "the executor has a remote task")
        job.send(NUMBERS)
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").to_pandas()["n"].tolist() == [200] * 10


def test_thread_cluster_and_single_thread_cluster_run_jobs(small_cluster, wait_until):
    before = sys.getswitchinterval()
    cluster = small_cluster(n_workers=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        assert_runs(client)
    cluster.close()
    assert sys.getswitchinterval() == before
    own = ("elastic-reader", "elastic-writer", "elastic-ticks", "elastic-beats")
    wait_until(
        lambda: not [thread.name for thread in threading.enumerate() if thread.name.startswith(own)],
        "the node's threads have ended",
    )


def test_simultaneous_submits_to_fresh_cluster_share_channels(small_cluster):
    cluster = small_cluster(n_workers=3, processes=False)
    with Client(cluster, set_as_default=False) as client:
        installing.install(client)
        source = de.sources.Arrow(NUMBERS, batch_rows=50, parallel=3)
        with ThreadPoolExecutor(4) as pool:
            submits = [
                pool.submit(de.submit, counting(source, executors=3), client, name=f"job-{number}")
                for number in range(4)
            ]
            jobs = [submit.result(100) for submit in submits]
        nodes = [worker.plugins["dask-elastic-worker"].runtime for worker in cluster.workers.values()]
        assert [len(node.channels._readers) for node in nodes] == [2, 2, 2]
        for job in jobs:
            job.wait(**RUN)
            assert job.state("counted").to_pandas()["n"].tolist() == [200] * 10
