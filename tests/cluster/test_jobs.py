"""Jobs are found, awaited, stopped, drained and forgotten; several run at a time, and keep the cluster running."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counting_jobs import NUMBERS, RUN, SCHEMA, assert_runs, counting, held
from distributed import Client

import dask_elastic as de
from dask_elastic.runtime.protocol.job_calls import Describe, Drain, Wait
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab import errors


def test_job_outlives_its_client_and_is_found_by_another(cluster, client):
    with Client(cluster, set_as_default=False) as first:
        held(first).send(NUMBERS)
    assert [job.name for job in de.jobs(client)] == ["held"]
    found = de.job("held", client)
    assert found.status == "running"
    found.send(NUMBERS)
    found.end_of_input()
    found.wait(**RUN)
    assert found.state("counted").get(3)["n"] == 400


def test_jobs_of_cluster_without_jobs_is_empty(small_cluster):
    with Client(small_cluster(processes=False), set_as_default=False) as fresh:
        assert de.jobs(fresh) == []
        with pytest.raises(errors.UnknownJob, match="no job was ever submitted"):
            de.job("any", fresh)


def test_worker_of_cluster_without_jobs_is_retired(small_cluster):
    cluster = small_cluster(n_workers=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        leaving, staying = client.nthreads()
        de.retire(leaving, client, timeout="100s")
        assert "elastic_retire" in cluster.scheduler.handlers
        job = held(client)
        assert job._describe().nodes == (staying,)
        job.forget()


@pytest.mark.parametrize("timeout", [0.3, "300ms"])
def test_wait_timeout_raises_and_leaves_job_running(client, timeout, slowness):
    job = held(client)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"'held' is still running after 0\.3 s"):
        job.wait(timeout=timeout)
    assert time.monotonic() - began < 20 * slowness()
    assert job.status == "running"


@pytest.mark.parametrize("hanging", [Wait, Drain])
def test_timeout_ends_a_wait_for_a_scheduler_that_hangs(cluster, client, monkeypatch, hanging):
    job = held(client)
    answers = threading.Event()

    async def hang(**message):
        await asyncio.to_thread(answers.wait, 100)

    monkeypatch.setitem(cluster.scheduler.handlers, hanging.operation, hang)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="has not answered within the timeout, or 3 s if less was left"):
        (job.wait if hanging is Wait else job.drain)(timeout=0.2)
    assert time.monotonic() - began < 50
    answers.set()
    assert job.status == "running"


def test_drain_spends_its_timeout_on_the_rows_sent_and_on_the_end_together(client, monkeypatch):
    job = held(client)
    asked, ask = [], job._ask
    monkeypatch.setattr(
        job, "_ask", lambda call, deadline: asked.append(call) or (None if isinstance(call, Drain) else ask(call))
    )

    def flush(timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ask(Describe("held"))

    monkeypatch.setattr(job, "flush", flush)
    with pytest.raises(TimeoutError, match=r"'held' is still running after 0\.7 s"):
        job.drain(timeout=0.7)
    assert asked == [Drain("held"), Wait("held", 0.0)]


def test_interrupted_wait_leaves_job_running_and_prints_how_to_stop_it(client, monkeypatch, capsys):
    job = held(client)
    ask = job._ask

    def interrupted(call, deadline=None):
        if isinstance(call, Wait):
            raise KeyboardInterrupt
        return ask(call)

    monkeypatch.setattr(job, "_ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    printed = capsys.readouterr().err
    assert "job.stop()" in printed
    assert "dask_elastic.job('held')" in printed
    assert job.status == "running"


def test_stopped_job_keeps_its_state(client, wait_until):
    job = held(client)
    job.send(NUMBERS)
    wait_until(lambda: job.metrics()["rows"].sum() == 2_000, "all rows are processed")
    job.stop()
    assert job.status == "stopped"
    with pytest.raises(errors.JobStopped, match="'held' was stopped"):
        job.wait(**RUN)
    assert job.state("counted").get(3)["n"] == 200
    assert "stopped" in repr(job)
    with pytest.raises(errors.JobEnded, match="takes no more rows"):
        job.send(NUMBERS)
    job.stop()
    assert job.status == "stopped"


def test_drained_job_processes_all_sent_rows(client):
    job = de.submit(counting(de.sources.Push(SCHEMA, rate=50_000)), client)
    for _ in range(20):
        job.send(NUMBERS)
    job.drain(timeout=100)
    assert job.status == "finished"
    assert job.state("counted").to_pandas()["n"].tolist() == [4_000] * 10


def test_drained_job_reads_no_more_source_batches(client, wait_until):
    def endless():
        while True:
            yield NUMBERS

    job = de.submit(counting(de.sources.Iterable(endless)), client)
    wait_until(lambda: job.metrics()["rows"].sum() > 0, "rows are processed")
    job.drain(timeout=100)
    assert job.status == "finished"
    assert job.state("counted").to_pandas()["n"].sum() % 2_000 == 0
    assert job.state("counted").to_pandas()["n"].sum() == job._describe().rows_read


def test_forgotten_job_is_unknown_and_releases_its_resources(client, threads_of_jobs):
    job = held(client)
    job.send(NUMBERS)
    job.forget()
    with pytest.raises(errors.UnknownJob):
        job.status  # noqa: B018
    assert de.jobs(client) == []
    assert threads_of_jobs(client) == []


def test_forgotten_job_leaves_nothing_in_workers_that_have_no_other(small_cluster, wait_until):
    cluster = small_cluster(n_workers=2, threads_per_worker=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = held(client)
        nodes = list(client.nthreads())
        job.set_cores("counted", dict.fromkeys(nodes, 1))
        runtimes = [worker.plugins["dask-elastic-worker"].runtime for worker in cluster.workers.values()]
        left = [weakref.ref(runtime.job_parts["held"]) for runtime in runtimes]
        left += [weakref.ref(home.executor.store) for part in left for home in part().homes.values()]
        assert len(left) > len(nodes)
        job.send(NUMBERS)
        job.end_of_input()
        job.wait(**RUN)
        job.forget()

        def released():
            gc.collect()
            return not any(one() for one in left)

        wait_until(released, "parts and stores of the job are released")


def test_instances_read_the_files_that_the_first_one_has_found(client, tmp_path):
    class Late(de.sources.Parquet):
        """A source whose second instance lists its files when there is another one."""

        def read(self, context):
            begun = tmp_path / "begun"
            while context.instance and not begun.exists():
                time.sleep(0.01)
            if context.instance:
                pq.write_table(pa.table({"n": [5]}), tmp_path / "b.parquet")
            for item in super().read(context):
                begun.touch()
                yield item

    for name, n in (("a", 1), ("c", 9)):
        pq.write_table(pa.table({"n": [n]}), tmp_path / f"{name}.parquet")
    topology = de.Topology("files")
    topology.source("rows", Late(tmp_path, parallel=2)).sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client)
    job.wait(**RUN)
    assert sorted(job.collect("out")["n"].to_pylist()) == [1, 9]


def test_job_reusing_name_of_stopped_job_starts_without_state(client):
    def endless():
        while True:
            yield NUMBERS

    for _ in range(5):
        job = de.submit(counting(de.sources.Iterable(endless)), client, name="again")
        job.stop()
        assert_runs(client, name="again")


def test_one_topology_submitted_twice_runs_as_two_jobs(client):
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


def test_ended_jobs_release_their_cores(client):
    for number in range(4):
        job = held(client, name=f"job-{number}")
        assert "oversubscribed" not in repr(job)
        job.stop()


def test_downscaling_keeps_only_homes_and_workers_with_tasks(small_cluster):
    cluster = small_cluster(n_workers=3, processes=False)
    with Client(cluster, set_as_default=False) as client:
        closed = cluster.scheduler.workers_to_close
        assert len(closed(n=3)) == 3
        job = de.submit(counting(de.sources.Push(SCHEMA), executors=1), client, latency_target=None)
        [home] = set(job.assignment()["home"])
        guest, idle = sorted({*client.nthreads()} - {home})
        job.set_cores("counted", {home: 1, guest: 1})
        assert closed(n=3) == [idle]
        job.set_cores("counted", {home: 1})
        assert sorted(closed(n=3)) == [guest, idle]
        job.set_cores("counted", {guest: 1})
        assert closed(n=3) == [idle]
        de.retire([guest], client, timeout="100s")
        assert sorted(closed(n=3)) == [guest, idle]
        job.stop()
        assert len(closed(n=3)) == 3


def test_running_job_defers_scheduler_idle_timeout(small_cluster, wait_until):
    cluster = small_cluster(processes=False)
    scheduler = cluster.scheduler
    with Client(cluster, set_as_default=False) as client:
        job = held(client)
        # Set only now: a slow machine could need longer to start the job.
        scheduler.idle_timeout = 1.0
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2.5, "twice the timeout has passed")
        assert scheduler.status.name == "running"
        scheduler.idle_timeout = None
        job.send(NUMBERS)
        job.end_of_input()
        job.wait(**RUN)
        wait_until(lambda: scheduler.idle_since, "the scheduler counts as idle again")


def test_ended_task_releases_its_key_cache(small_cluster, wait_until):
    cluster = small_cluster(n_workers=2, threads_per_worker=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = held(client)
        nodes = list(client.nthreads())
        runtimes = [worker.plugins["dask-elastic-worker"].runtime for worker in cluster.workers.values()]
        for _ in range(3):
            for count in (1, 0):
                job.set_cores("counted", {nodes[0]: 1 + count, nodes[1]: count})
                wait_until(lambda: len(job.assignment()["task"]) == (1 + 2 * count) * 2, "tasks were added or removed")  # noqa: B023
                job.send(NUMBERS)
        job_parts = [runtime.job_parts["held"] for runtime in runtimes]
        stores = [home.executor.store for d in job_parts for home in d.homes.values()]
        stores += [remote.part.store for d in job_parts for remote in d.remotes.values()]
        sessions = [store._sessions._sessions for store in stores]
        wait_until(lambda: sum(map(len, sessions)) == 2, "only two tasks have a session")
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").to_pandas()["n"].tolist() == [1_200] * 10


def test_job_with_failing_measurement_fails_and_next_job_runs(small_cluster, monkeypatch):
    def broken(self):
        raise RuntimeError("no measure")

    with Client(small_cluster(processes=False), set_as_default=False) as client, monkeypatch.context() as patched:
        job = held(client)
        patched.setattr(KeyedStore, "shard_bytes", broken)
        with pytest.raises(errors.JobFailed, match="no measure"):
            job.wait(**RUN)
        patched.undo()
        assert_runs(client)
