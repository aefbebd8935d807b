"""The life of jobs and of what they run on: they are found, stopped and lost, and the cluster outlives them all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from distributed import Client
from distributed.security import Security

import dask_elastic as de
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab import errors
from dask_elastic_plugins import install as installing
from dask_elastic_plugins import scheduler as scheduler_plugin
from dask_elastic_plugins import worker as worker_plugin

RUN = {"timeout": 30, "progress": False}
NUMBERS = pa.table({"k": np.arange(2_000) % 10, "v": np.arange(2_000)})
SCHEMA = NUMBERS.schema


def counting(source, name="count", **compute):
    """A topology that counts rows by the column k."""
    topology = de.Topology(name)
    rows = topology.source("rows", source)
    counted = rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted", **compute)
    counted.sink(de.sinks.Collect(), name="out")
    return topology


def held(client, name="held", **options):
    """A job that runs until its input is ended."""
    return de.submit(counting(de.sources.Push(SCHEMA)), client, name=name, **options)


def assert_runs(client, name="next"):
    """The cluster takes a job, and its result is right."""
    job = de.submit(counting(de.sources.Arrow(NUMBERS, batch_rows=100)), client, name=name)
    job.wait(**RUN)
    assert job.state("counted").to_pandas()["n"].tolist() == [200] * 10


# finding and ending jobs


def test_a_job_outlives_its_client_and_another_finds_it(cluster, client):
    with Client(cluster, set_as_default=False) as first:
        held(first).send(NUMBERS)
    assert [job.name for job in de.jobs(client)] == ["held"]
    found = de.job("held", client)
    assert found.status == "running"
    found.send(NUMBERS)
    found.end_of_input()
    found.wait(**RUN)
    assert found.state("counted").get(3)["n"] == 400


def test_jobs_of_a_cluster_that_never_had_any(small_cluster):
    with Client(small_cluster(processes=False), set_as_default=False) as fresh:
        assert de.jobs(fresh) == []
        with pytest.raises(errors.UnknownJob, match="no job was ever submitted"):
            de.job("any", fresh)


@pytest.mark.parametrize("timeout", [0.3, "300ms"])
def test_wait_gives_up_after_its_timeout_and_the_job_goes_on(client, timeout):
    job = held(client)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"'held' is still running after 0\.3 s"):
        job.wait(timeout=timeout)
    assert time.monotonic() - began < 3
    assert job.status == "running"


def test_an_interrupted_wait_leaves_the_job_running_and_says_how_to_stop_it(client, monkeypatch, capsys):
    job = held(client)
    call = job._call

    def interrupted(operation, **arguments):
        if operation == "wait":
            raise KeyboardInterrupt
        return call(operation, **arguments)

    monkeypatch.setattr(job, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    said = capsys.readouterr().err
    assert "job.stop()" in said
    assert "dask_elastic.job('held')" in said
    assert job.status == "running"


def test_a_stopped_job_keeps_its_state(client, wait_until):
    job = held(client)
    job.send(NUMBERS)
    wait_until(lambda: job.metrics()["rows"].sum() == 2_000, "all rows are processed")
    job.stop()
    assert job.status == "stopped"
    with pytest.raises(errors.JobStopped, match="'held' was stopped"):
        job.wait(**RUN)
    assert job.state("counted").get(3)["n"] == 200
    assert "stopped" in repr(job)
    with pytest.raises(errors.JobFailed, match="takes no more rows"):
        job.send(NUMBERS)
    job.stop()
    assert job.status == "stopped"


def test_a_drained_job_processes_what_it_was_sent(client):
    job = de.submit(counting(de.sources.Push(SCHEMA, rate=50_000)), client)
    for _ in range(20):
        job.send(NUMBERS)
    job.drain(timeout=30)
    assert job.status == "finished"
    assert job.state("counted").to_pandas()["n"].tolist() == [4_000] * 10


def test_a_drained_job_reads_no_further(client, wait_until):
    def endless():
        while True:
            yield NUMBERS

    job = de.submit(counting(de.sources.Iterable(endless)), client)
    wait_until(lambda: job.metrics()["rows"].sum() > 0, "rows are processed")
    job.drain(timeout=30)
    assert job.status == "finished"
    assert job.state("counted").to_pandas()["n"].sum() % 2_000 == 0
    assert job.state("counted").to_pandas()["n"].sum() == job._describe()["sources"][0][2]


def test_a_forgotten_job_is_unknown_and_leaves_nothing(client, threads_of_jobs):
    job = held(client)
    job.send(NUMBERS)
    job.forget()
    with pytest.raises(errors.UnknownJob):
        job.status  # noqa: B018
    assert de.jobs(client) == []
    assert threads_of_jobs(client) == []


def test_a_job_of_the_name_of_a_running_one_that_is_stopped_begins_afresh(client):
    def endless():
        while True:
            yield NUMBERS

    for _ in range(5):
        job = de.submit(counting(de.sources.Iterable(endless)), client, name="again")
        job.stop()
        assert_runs(client, name="again")


def test_two_jobs_run_at_a_time_and_a_topology_is_submitted_twice(client):
    topology = counting(de.sources.Push(SCHEMA))
    first = de.submit(topology, client, name="first", cores={"counted": 1})
    second = de.submit(topology, client, name="second", cores={"counted": 1})
    for _ in range(5):
        first.send(NUMBERS)
        second.send(NUMBERS.slice(0, 10))
    assert {job.name for job in de.jobs(client)} >= {"first", "second"}
    first.end_of_input()
    first.wait(**RUN)
    assert second.status == "running"
    second.end_of_input()
    second.wait(**RUN)
    assert first.state("counted").get(1)["n"] == 1_000
    assert second.state("counted").get(1)["n"] == 5


def test_cores_of_ended_jobs_are_free_again(client):
    for number in range(4):
        job = held(client, name=f"job-{number}")
        assert "oversubscribed" not in repr(job)
        job.stop()


def test_jobs_that_are_submitted_at_a_time_share_the_channels_of_a_fresh_cluster(small_cluster):
    cluster = small_cluster(n_workers=3, processes=False)
    with Client(cluster, set_as_default=False) as client:
        installing.install(client)
        source = de.sources.Arrow(NUMBERS, batch_rows=50, parallel=3)
        with ThreadPoolExecutor(4) as pool:
            submits = [
                pool.submit(de.submit, counting(source, executors=3), client, name=f"job-{number}")
                for number in range(4)
            ]
            jobs = [submit.result(30) for submit in submits]
        nodes = [worker.plugins["dask-elastic-worker"].runtime for worker in cluster.workers.values()]
        assert [len(node.channels.inbound) for node in nodes] == [2, 2, 2]
        for job in jobs:
            job.wait(**RUN)
            assert job.state("counted").to_pandas()["n"].tolist() == [200] * 10


# what a cluster loses


def replaced(client, address):
    """Whether one of two workers has been replaced; the other may know of its end before the scheduler does."""
    workers = client.nthreads()
    return len(workers) == 2 and address not in workers


def test_a_killed_home_fails_the_job_within_seconds_and_the_next_one_runs(small_cluster, wait_until):
    with Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(counting(de.sources.Push(SCHEMA), executors=1), client)
        job.send(NUMBERS)
        home = job.assignment()["home"][0]
        began = time.monotonic()
        os.kill(client.run(os.getpid)[home], signal.SIGKILL)
        with pytest.raises(errors.JobFailed, match=r"(is gone|does not answer).*home of executors") as e:
            job.wait(**RUN)
        assert time.monotonic() - began < 10
        assert isinstance(e.value.__cause__, errors.NodeLost)
        with pytest.raises(errors.NodeLost):
            job.send(NUMBERS)
        began = time.monotonic()
        with pytest.raises(errors.NodeLost):
            job.state("counted").to_arrow()
        assert time.monotonic() - began < 5
        wait_until(lambda: replaced(client, home), "the nanny brings the worker back")
        assert_runs(client)
        job.forget()


def test_a_worker_killed_under_load_ends_the_job_and_all_of_its_threads(small_cluster, wait_until, threads_of_jobs):
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
        wait_until(lambda: replaced(client, nodes[1]), "the nanny brings the worker back")
        wait_until(lambda: threads_of_jobs(client) == [], "the threads of the lost job end")
        assert_runs(client)


def test_a_restarted_cluster_fails_the_job_and_takes_the_next(small_cluster):
    with Client(small_cluster(n_workers=1, threads_per_worker=2), set_as_default=False) as client:
        job = held(client)
        client.restart()
        with pytest.raises(errors.JobFailed) as e:
            job.wait(**RUN)
        assert isinstance(e.value.__cause__, errors.NodeLost)
        assert_runs(client)


def test_workers_that_join_later_do_not_disturb_and_serve_the_next_job(small_cluster, wait_until):
    cluster = small_cluster(n_workers=1, threads_per_worker=1, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = held(client)
        job.send(NUMBERS)
        cluster.scale(2)
        client.wait_for_workers(2, timeout=30)
        job.send(NUMBERS)
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").get(1)["n"] == 400
        assert_runs(client)
        assert de.job("next", client).assignment()["node"].nunique() == 2


# what a running job holds


def test_workers_of_running_jobs_are_not_chosen_for_downscaling(small_cluster):
    cluster = small_cluster(n_workers=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        assert len(cluster.scheduler.workers_to_close(n=1)) == 1
        job = held(client)
        assert cluster.scheduler.workers_to_close(n=1) == []
        job.stop()
        assert len(cluster.scheduler.workers_to_close(n=1)) == 1


def test_a_running_job_holds_off_the_idle_timeout(small_cluster, wait_until):
    cluster = small_cluster(processes=False, scheduler_kwargs={"idle_timeout": "1s"})
    scheduler = cluster.scheduler
    with Client(cluster, set_as_default=False) as client:
        job = held(client)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2.5, "twice the timeout has passed")
        job.send(NUMBERS)
        job.end_of_input()
        job.wait(**RUN)
        assert scheduler.status.name == "running"
        wait_until(lambda: scheduler.idle_since, "the scheduler counts as idle again")
        scheduler.idle_timeout = None


# coming and going of the plugins


def elastic_handlers(dask_worker):
    """What of dask_elastic is left on a worker."""
    named = [name for name in (*dask_worker.handlers, *dask_worker.plugins) if "elastic" in name]
    return named + [thread.name for thread in threading.enumerate() if thread.name.startswith("elastic")]


def scheduler_handlers(dask_scheduler):
    """What of dask_elastic is left on a scheduler."""
    places = (dask_scheduler.handlers, dask_scheduler.plugins, dask_scheduler.worker_plugins)
    return [name for place in places for name in place if "elastic" in name]


def assert_clean(client, wait_until):
    """Nothing of dask_elastic is left on the cluster."""
    wait_until(lambda: not any(client.run(elastic_handlers).values()), "the workers are clean")
    assert client.run_on_scheduler(scheduler_handlers) == []
    assert set(client.run(sys.getswitchinterval).values()) == {0.005}


def test_uninstall_leaves_the_cluster_clean_and_submit_installs_again(small_cluster, wait_until):
    cluster = small_cluster(n_workers=2)
    with Client(cluster, set_as_default=False) as client, Client(cluster, set_as_default=False) as other:
        assert_clean(client, wait_until)
        installing.install(client)
        assert_runs(other, name="of-the-other")
        job = held(client)
        assert any(client.run(elastic_handlers).values())
        installing.uninstall(client)
        assert_clean(client, wait_until)
        with pytest.raises(errors.UnknownJob):
            job.status  # noqa: B018
        assert de.jobs(client) == []
        installing.uninstall(client)
        assert_runs(client)
        installing.uninstall(client)
        assert_runs(other)
        assert de.job("next", client).status == "finished"


@pytest.fixture
def command_line(tmp_path):
    """Start a Dask scheduler and a worker from the command line, both with the preload; gives the address."""
    file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    preload = ["--preload", "dask_elastic_plugins.install", "--scheduler-file", str(file), "--no-dashboard"]
    commands = [
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", *preload],
        [*dask, "worker", "--nthreads", "2", "--no-nanny", "--local-directory", str(tmp_path), *preload],
    ]
    log = (tmp_path / "log").open("w")
    started = [subprocess.Popen(command, stdout=log, stderr=log, env=os.environ) for command in commands]
    yield file, tmp_path / "log"
    for process in reversed(started):
        process.send_signal(signal.SIGINT)
    for process in started:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
    log.close()


def test_a_preloaded_cluster_serves_several_clients_and_is_left_clean(command_line, wait_until):
    file, log = command_line
    wait_until(lambda: file.exists() and file.stat().st_size, "the scheduler has started")
    address = json.loads(file.read_text())["address"]
    with Client(address, set_as_default=False) as client, Client(address, set_as_default=False) as other:
        client.wait_for_workers(1, timeout=30)
        assert de.jobs(client) == []
        assert any(client.run(elastic_handlers).values())
        job = held(client)
        job.send(NUMBERS)
        assert_runs(other)
        job.send(NUMBERS)
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").get(1)["n"] == 400
        installing.uninstall(other)
        assert_clean(client, wait_until)
        assert_runs(client)
    assert "Traceback" not in log.read_text()


def test_a_plugin_that_cannot_be_set_up_on_a_worker_does_not_harm_it(small_cluster, monkeypatch, caplog):
    def broken(worker):
        raise OSError("no threads left")

    monkeypatch.setattr(worker_plugin, "NodeRuntime", broken)
    with Client(small_cluster(processes=False), set_as_default=False) as client:
        with pytest.raises(errors.SubmitError, match="no dask_elastic"):
            held(client)
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3
    assert "could not be set up on worker" in caplog.text


def test_a_plugin_that_cannot_be_set_up_on_the_scheduler_does_not_harm_it(small_cluster, monkeypatch, caplog):
    def broken(scheduler):
        raise OSError("no threads left")

    monkeypatch.setattr(scheduler_plugin, "Coordinator", broken)
    with Client(small_cluster(processes=False), set_as_default=False) as client:
        with pytest.raises(errors.ElasticError, match="does not host dask_elastic"):
            held(client)
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3
    assert "could not be set up on the scheduler" in caplog.text


@pytest.mark.parametrize("processes", [False, True], ids=["comm", "socket"])
def test_garbage_ends_the_channel_it_comes_on_and_the_next_job_gets_another(small_cluster, processes):
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


# kinds of clusters


def test_a_cluster_with_tls_runs_a_job_over_several_nodes(small_cluster, wait_until):
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


def test_a_cluster_of_threads_and_one_of_one_thread(small_cluster, wait_until):
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


# upkeep over months


def test_a_task_that_has_ended_leaves_no_cache_of_keys_behind(small_cluster, wait_until):
    cluster = small_cluster(n_workers=2, threads_per_worker=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = held(client)
        nodes = list(client.nthreads())
        runtimes = [worker.plugins["dask-elastic-worker"].runtime for worker in cluster.workers.values()]
        for _ in range(3):
            for count in (2, 0):
                job.set_cores("counted", {nodes[0]: 1 + count, nodes[1]: count})
                wait_until(lambda: len(job.assignment()["task"]) == (1 + 2 * count) * 2, "tasks came or went")  # noqa: B023
                job.send(NUMBERS)
        deployments = [runtime.deployments["held"] for runtime in runtimes]
        stores = [home.executor.store for d in deployments for home in d.homes.values()]
        stores += [remote.part.store for d in deployments for remote in d.remotes.values()]
        wait_until(lambda: sum(len(store._sessions) for store in stores) == 2, "only two tasks have a session")
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").to_pandas()["n"].tolist() == [1_200] * 10


def test_a_job_that_cannot_be_measured_fails_and_the_next_one_runs(small_cluster, monkeypatch):
    def broken(self):
        raise RuntimeError("no measure")

    with Client(small_cluster(processes=False), set_as_default=False) as client, monkeypatch.context() as patched:
        job = held(client)
        patched.setattr(KeyedStore, "shard_bytes", broken)
        with pytest.raises(errors.JobFailed, match="no measure"):
            job.wait(**RUN)
        patched.undo()
        assert_runs(client)
