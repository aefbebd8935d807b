"""Workers are killed, restarted and join under jobs, and channels break: jobs fail clearly, and the next one runs."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest
from counting_jobs import NUMBERS, RUN, SCHEMA, assert_runs, counting, held
from distributed import Client

import dask_elastic as de
from dask_elastic.vocab import errors


def replaced(client, address):
    """Whether one of two workers has been replaced; the other may know of its end before the scheduler does."""
    workers = client.nthreads()
    return len(workers) == 2 and address not in workers


def test_killed_home_fails_job_within_seconds_and_next_job_runs(small_cluster, wait_until, slowness):
    with Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(counting(de.sources.Push(SCHEMA), executors=1), client)
        job.send(NUMBERS)
        home = job.assignment()["home"][0]
        began = time.monotonic()
        os.kill(client.run(os.getpid)[home], signal.SIGKILL)
        with pytest.raises(errors.JobFailed, match=r"(has left the cluster|does not answer).*home of executors") as e:
            job.wait(timeout=120, progress=False)
        assert time.monotonic() - began < 40 * slowness()
        assert isinstance(e.value.__cause__, errors.NodeLost)
        with pytest.raises(errors.NodeLost):
            job.send(NUMBERS)
        began = time.monotonic()
        with pytest.raises(errors.NodeLost):
            job.state("counted").to_arrow()
        assert time.monotonic() - began < 40 * slowness()
        # The new process imports Dask, which takes long while others use the processors.
        wait_until(lambda: replaced(client, home), "the nanny restarts the worker", timeout=120)
        assert_runs(client)
        job.forget()


def test_worker_killed_under_load_ends_job_and_its_threads(small_cluster, wait_until, threads_of_jobs):
    def endless(instance, instances):
        while True:
            yield NUMBERS

    with Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client:
        source = de.sources.Iterable(endless, parallel=2)
        job = de.submit(counting(source, executors=2), client, channel_window="64KiB")
        nodes = list(client.nthreads())
        job.set_cores("counted", dict.fromkeys(nodes, 1))
        wait_until(lambda: job.assignment()["remote"].sum() == 2, "each executor has a remote task")
        wait_until(lambda: job.metrics()["rows"].sum() > 10_000, "rows flow")
        os.kill(client.run(os.getpid)[nodes[1]], signal.SIGKILL)
        with pytest.raises(errors.JobFailed) as e:
            job.wait(**RUN)
        assert isinstance(e.value.__cause__, errors.NodeLost)
        wait_until(lambda: replaced(client, nodes[1]), "the nanny restarts the worker")
        wait_until(lambda: threads_of_jobs(client) == [], "the threads of the lost job end")
        assert_runs(client)


def test_cluster_restart_fails_job_and_next_job_runs(small_cluster):
    with Client(small_cluster(n_workers=1, threads_per_worker=2), set_as_default=False) as client:
        job = held(client)
        client.restart()
        with pytest.raises(errors.JobFailed) as e:
            job.wait(**RUN)
        assert isinstance(e.value.__cause__, errors.NodeLost)
        assert_runs(client)


def test_late_workers_leave_running_job_alone_and_serve_next_job(small_cluster, wait_until):
    cluster = small_cluster(n_workers=1, threads_per_worker=1, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = held(client)
        job.send(NUMBERS)
        cluster.scale(2)
        client.wait_for_workers(2, timeout=100)
        job.send(NUMBERS)
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").get(1)["n"] == 400
        assert_runs(client)
        assert de.job("next", client).assignment()["node"].nunique() == 2


@pytest.mark.parametrize("processes", [False, True], ids=["comm", "socket"])
def test_garbage_closes_its_channel_and_next_job_opens_another(small_cluster, processes):
    def send_garbage(addresses, dask_worker):
        channels = dask_worker.plugins["dask-elastic-worker"].runtime.channels
        for address in addresses:
            if address != dask_worker.address:
                with contextlib.suppress(errors.NodeLost):  # the other's garbage was faster
                    channels.peer(address)._append(["end", "of", "it"], [])

    with Client(small_cluster(n_workers=2, processes=processes), set_as_default=False) as client:
        job = held(client)
        client.run(send_garbage, list(client.nthreads()))
        with pytest.raises(errors.JobFailed, match=r"of the unknown kind \['end', 'of', 'it'\]|broke|peer has closed"):
            job.wait(**RUN)
        assert isinstance(job.error, errors.NodeLost)
        assert_runs(client)
