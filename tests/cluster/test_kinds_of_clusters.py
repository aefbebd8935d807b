"""Clusters with TLS, of threads in one process, and fresh ones of several workers."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
from counting_jobs import NUMBERS, RUN, SCHEMA, assert_runs, counting, held
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


def test_tls_ports_are_those_of_dask_which_closes_junk_at_once(small_cluster):
    def listening():
        connections = psutil.Process().net_connections(kind="tcp")
        return sorted(made.laddr.port for made in connections if made.status == psutil.CONN_LISTEN)

    with Client(small_cluster(security=Security.temporary()), set_as_default=False) as client:
        before = client.run(listening)
        job = held(client)
        assert client.run(listening) == before
        for address in (client.scheduler.address, *client.nthreads()):
            host, port = address.removeprefix("tls://").rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=20) as junk:
                junk.sendall(b"GET / HTTP/1.0\r\n\r\n")
                try:
                    while junk.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        job.end_of_input()
        job.wait(**RUN)


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


UNCLOSED = """
import dask_elastic as de
from dask.distributed import Client
from dask_elastic import aggregate as agg

client = Client(processes=False, dashboard_address=None)
topology = de.Topology("unclosed")
source = topology.source("rows", de.sources.Arrow({"k": [1, 2]}))
source.key_by("k").compute({"n": agg.Count()}, name="counted")
de.submit(topology, client).wait(progress=False)
print("done")
"""


def test_program_that_ends_without_closing_its_thread_cluster_prints_no_traceback():
    ended = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout == "done\n"
    assert "Traceback" not in ended.stderr


def test_simultaneous_submits_to_fresh_cluster_share_channels(small_cluster, wait_until):
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
        # Where the lane is not a socket, a node may be connected before the other one reads.
        wait_until(lambda: [len(node.channels._readers) for node in nodes] == [2, 2, 2], "each node reads each other")
        for job in jobs:
            job.wait(**RUN)
            assert job.state("counted").to_pandas()["n"].tolist() == [200] * 10
