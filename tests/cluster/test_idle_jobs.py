"""A job without rows reports, balances and plans rarely; rows wake it at once, and it is not taken for a hung one."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from distributed import Client

import dask_elastic as de
from dask_elastic.runtime.worker import idle_watch

# Workers import this file too, for what they are asked to run.
sys.path.insert(0, str(Path(__file__).parent))
from counting_jobs import NUMBERS, SCHEMA, counting


@pytest.fixture
def idle_soon(monkeypatch):
    monkeypatch.setattr(idle_watch, "IDLE_AFTER", 0.8)


@pytest.fixture
def coordinator_of(small_cluster, idle_soon):
    """Return a function that starts a cluster in this process, and returns a client and the coordinator of its jobs."""
    clients = []

    def start(**options):
        cluster = small_cluster(processes=False, **options)
        clients.append(Client(cluster, set_as_default=False))
        return clients[-1], lambda: cluster.scheduler.plugins["dask-elastic-scheduler"].coordinator

    yield start
    for client in clients:
        client.close()


def submitted(client, executors=1, **options):
    """Start a job that counts what is sent to it."""
    return de.submit(counting(de.sources.Push(SCHEMA), executors=executors), client, **options)


def idle(coordinator, job):
    """Whether every node of a job has repeated its last report."""
    record = coordinator.jobs[job.name]
    return len(record.reports) == len(record.addresses) and all(received.idle for received in record.reports.values())


def rows_seen(job):
    return int(job.metrics()["rows"].sum())


def test_idle_job_reports_rows_as_soon_as_they_arrive(coordinator_of, wait_until):
    client, coordinator = coordinator_of(n_workers=2)
    job = submitted(client, executors=2)
    for sent in (1, 2):
        job.send(NUMBERS)
        wait_until(lambda sent=sent: rows_seen(job) == sent * NUMBERS.num_rows, "all rows are reported")
        wait_until(lambda: idle(coordinator(), job), "the job is idle")
    reported = dict(coordinator().jobs[job.name].reports)
    wait_until(lambda: coordinator().jobs[job.name].reports[0].at > reported[0].at, "the report is repeated")
    assert coordinator().jobs[job.name].reports[0].report is reported[0].report
    assert set(job.metrics()["queue"]) == {0}
    job.end_of_input()
    job.wait(timeout=100, progress=False)
    assert job.state("counted").to_pandas()["n"].sum() == 2 * NUMBERS.num_rows


def test_cores_of_idle_job_change_and_are_reported(coordinator_of, wait_until):
    client, coordinator = coordinator_of(threads_per_worker=3)
    job = submitted(client)
    wait_until(lambda: idle(coordinator(), job), "the job is idle")
    job.set_cores("counted", 3)
    wait_until(lambda: job.metrics()["cores"].tolist() == [3], "the new cores are reported")
    wait_until(lambda: idle(coordinator(), job), "the job is idle again")
    job.move_shard("counted", shard=0, task=2)
    wait_until(lambda: job.metrics()["moves"].tolist() == [1], "the move is reported")
    job.stop()


def test_job_with_remote_tasks_becomes_idle_and_has_all_state_at_home(coordinator_of, wait_until):
    client, coordinator = coordinator_of(n_workers=2)
    job = submitted(client, cores={"counted": 2}, flush_interval="50ms")
    assert job.assignment()["remote"].any()
    job.send(NUMBERS)
    wait_until(lambda: rows_seen(job) == NUMBERS.num_rows, "all rows are processed")
    wait_until(lambda: idle(coordinator(), job), "the job is idle")
    assert job.metrics()["pending_bytes"].tolist() == [0]
    assert job.state("counted").to_pandas()["n"].sum() == NUMBERS.num_rows


def test_job_is_not_idle_while_a_batch_is_processed(coordinator_of, wait_until, tmp_path):
    client, coordinator = coordinator_of(n_workers=2)
    finish = tmp_path / "finish"

    def slow(batch, state):
        (tmp_path / threading.current_thread().name).touch()
        while not finish.exists():
            time.sleep(0.01)

    topology = de.Topology("slow")
    rows = topology.source("rows", de.sources.Push(SCHEMA))
    rows.key_by("k").compute(slow, state={"n": de.Value(pa.int64())}, name="slow", executors=1)
    job = de.submit(topology, client, cores={"slow": 2})
    assert job.assignment()["remote"].any()
    job.send(NUMBERS)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both tasks process rows")
    record = coordinator().jobs[job.name]
    begun = time.time()
    wait_until(lambda: all(r.at > begun + 2.5 for r in record.reports.values()), "all nodes have reported for long")
    assert [received.idle for received in record.reports.values()] == [False, False]
    assert job.metrics()["queue"].tolist() == [NUMBERS.num_rows]
    finish.touch()
    wait_until(lambda: rows_seen(job) == NUMBERS.num_rows, "all rows are processed")
    wait_until(lambda: idle(coordinator(), job), "the job is idle")


def test_failure_of_idle_job_is_reported(coordinator_of, wait_until):
    client, coordinator = coordinator_of()

    def fail(rows):
        raise ValueError("broken row")

    topology = de.Topology("fails")
    rows = topology.source("rows", de.sources.Push(SCHEMA)).map(fail, name="broken")
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    wait_until(lambda: idle(coordinator(), job), "the job is idle")
    job.send(NUMBERS)
    wait_until(lambda: job.status == "failed", "the job has failed")


def test_watermark_of_row_that_follows_at_once_is_sent_after_interval(coordinator_of, wait_until):
    client, coordinator = coordinator_of()
    topology = de.Topology("timed")
    schema = pa.schema({"k": pa.int64(), "at": pa.timestamp("s")})
    rows = topology.source("rows", de.sources.Push(schema, event_time="at"))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted").sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client, watermark_interval="300ms", idle_timeout=None)
    wait_until(lambda: idle(coordinator(), job), "the job is idle")
    for second in range(20):
        job.send(pa.table({"k": [1], "at": [second]}, schema=schema))
    newest = lambda: set(job.event_times()["event_time"].dropna().astype("int64") // 10**6)  # noqa: E731
    wait_until(lambda: newest() == {19}, "the last watermark has arrived everywhere")
    job.drain(timeout=100)
