"""Rows that programs send, and rows of queues, survive lost workers and clusters: each once, in order."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from counting_jobs import RUN
from distributed import Client

import dask_elastic as de
from dask_elastic.runtime.client import unacknowledged
from dask_elastic.runtime.client.outlet import Outlet
from dask_elastic.runtime.client.senders import senders_of
from dask_elastic.runtime.worker.push_server import Inlet
from dask_elastic.vocab.errors import JobEnded

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import SCHEMA, STATE, following

sys.path.pop(0)


def followed(folder, source):
    """A topology that tracks the order of the rows of each sender, and writes each row."""
    topology = de.Topology("durable")
    options = {"name": "followed", "state": STATE, "executors": 2, "shards": 16}
    out = topology.source("rows", source).key_by("k").compute(following(), **options)
    out.sink(de.sinks.Parquet(folder), name="out")
    return topology


def table(sender, first, last):
    """Rows of one sender, numbered as `following` expects them."""
    numbers = pa.array(range(first, last), pa.int64())
    return pa.table({"k": pa.array([sender] * len(numbers), pa.int64()), "v": numbers, "seq": numbers}, schema=SCHEMA)


def assert_each_row_once(job, folder, counts):
    """Assert that state and files have each row of each sender once and in order."""
    state = {row["k"]: (row["n"], row["sum"], row["faults"]) for row in job.state("followed").to_arrow().to_pylist()}
    assert state == {sender: (count, sum(range(count)), 0) for sender, count in counts.items()}
    written = ds.dataset(folder, format="parquet").to_table(columns=["k", "seq"])
    wanted = pa.concat_tables([table(sender, 0, count).select(["k", "seq"]) for sender, count in counts.items()])
    order = [("k", "ascending"), ("seq", "ascending")]
    assert written.sort_by(order).equals(wanted.sort_by(order))


def newest(job):
    """The newest complete checkpoint of a job."""
    return job._describe().checkpoints.number


def home_of_source(job):
    """The worker to which the client of a job sends."""
    return senders_of(job.client)._senders[job.name, "rows"]._outlet.address


KILLS = int(os.environ.get("SOURCE_KILLS", "1"))
"""How often the source is killed; `make faults` kills it more often."""


def test_sent_rows_survive_kills_of_the_source(small_cluster, wait_until, tmp_path):
    cluster = small_cluster(n_workers=3, threads_per_worker=1)
    with (
        Client(cluster, set_as_default=False) as client,
        Client(cluster, set_as_default=False, direct_to_workers=False) as indirect,
    ):
        out = tmp_path / "out"
        job = de.submit(
            followed(out, de.sources.Push(SCHEMA)), client, checkpoint=tmp_path / "c", checkpoint_interval="300ms"
        )
        handles = [job, job, de.job("durable", indirect)]
        counts = dict.fromkeys(range(len(handles)), 0)
        ends = threading.Event()

        def send(handle, sender):
            while not ends.is_set():
                # Two wait for each acknowledgement, one sends ahead.
                handle.send(table(sender, counts[sender], counts[sender] + 5), wait=sender != 1)
                counts[sender] += 5
                if counts[sender] % 200 == 0:
                    handle.flush()
            handle.flush()

        def going_on():
            for sender in senders:
                if sender.done():
                    sender.result()
            return True

        with ThreadPoolExecutor(len(handles)) as pool:
            senders = [pool.submit(send, handle, k) for k, handle in enumerate(handles)]
            try:
                wait_until(lambda: going_on() and min(counts.values()) >= 50, "all clients send")
                for _ in range(KILLS):
                    before = newest(job)
                    wait_until(
                        lambda before=before: going_on() and newest(job) > before, "another checkpoint is complete"
                    )
                    sent = dict(counts)
                    home = home_of_source(job)
                    os.kill(client.run(os.getpid, workers=[home])[home], signal.SIGKILL)
                    wait_until(lambda sent=sent: all(counts[k] > sent[k] + 50 for k in counts), "rows are sent again")
            finally:
                ends.set()
                # An error of a sender explains the others.
                going_on()
            for sender in senders:
                sender.result(240)
        assert job._describe().generation > 1
        assert senders_of(client).uncertain_rows == senders_of(indirect).uncertain_rows == 0
        job.end_of_input()
        job.wait(**RUN)
        assert_each_row_once(job, out, counts)


@pytest.mark.usefixtures("ended_run")
def test_acknowledged_rows_are_there_when_the_job_resumes_on_a_new_cluster(small_cluster, client, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "checkpoints"
    with Client(small_cluster(processes=False), set_as_default=False) as first:
        job = de.submit(followed(out, de.sources.Push(SCHEMA)), first, checkpoint=folder, checkpoint_interval="1h")
        for part in range(20):
            job.send(table(1, 5 * part, 5 * part + 5))
        job.checkpoint()
        for part in range(20, 40):
            job.send(table(1, 5 * part, 5 * part + 5))
        job.flush()
        first.cluster.close()
    again = de.resume(folder, client)
    again.send(table(1, 200, 300), wait=True)
    again.end_of_input()
    again.wait(**RUN)
    assert_each_row_once(again, out, {1: 300})
    last = de.resume(folder, client)
    last.wait(**RUN)
    assert_each_row_once(last, out, {1: 300})


def test_drained_job_takes_rows_again_when_it_resumes(client, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "checkpoints"
    job = de.submit(followed(out, de.sources.Push(SCHEMA)), client, checkpoint=folder)
    job.send(table(1, 0, 100))
    job.drain(240)
    again = de.resume(folder, client)
    again.send(table(1, 100, 200))
    again.end_of_input()
    again.wait(**RUN)
    assert_each_row_once(again, out, {1: 200})


def sender_of(job):
    """What a client has sent to the source of a job."""
    return senders_of(job.client)._senders[job.name, "rows"]


def test_client_sends_again_after_an_interrupt(client, tmp_path):
    out = tmp_path / "out"
    job = de.submit(followed(out, de.sources.Push(SCHEMA)), client, checkpoint=tmp_path / "c")
    job.send(table(0, 0, 5), wait=True)

    def interrupt():
        raise KeyboardInterrupt

    # The socket has not taken the rows yet, and this thread is the one that would write them.
    sender_of(job)._outlet._duplex._lane.transmit = interrupt
    with pytest.raises(KeyboardInterrupt):
        job.send(table(0, 5, 10))
    job.send(table(0, 10, 15), wait=True, timeout=60)
    job.end_of_input()
    job.wait(**RUN)
    assert_each_row_once(job, out, {0: 15})


def test_rows_on_the_way_through_the_scheduler_survive_a_new_connection_of_another_thread(
    small_cluster, monkeypatch, tmp_path
):
    async def refuse(self, job, connection_args):
        raise OSError("no route to host")

    out = tmp_path / "out"
    with Client(small_cluster(processes=False), set_as_default=False) as client:
        job = de.submit(followed(out, de.sources.Push(SCHEMA)), client, checkpoint=tmp_path / "c")
        with monkeypatch.context() as unreachable:
            unreachable.setattr(Outlet, "open", refuse)
            job.send(table(0, 0, 5))
        sender, bytes_of = sender_of(job), unacknowledged.table_bytes
        assert sender._outlet is None

        def connect_meanwhile(rows):
            monkeypatch.setattr(unacknowledged, "table_bytes", bytes_of)
            sender.doubt()
            job.send(table(1, 0, 5), wait=True)
            assert sender._outlet is not None
            return bytes_of(rows)

        monkeypatch.setattr(unacknowledged, "table_bytes", connect_meanwhile)
        job.send(table(0, 5, 10), wait=True, timeout=60)
        job.end_of_input()
        job.wait(**RUN)
        assert_each_row_once(job, out, {0: 10, 1: 5})


@pytest.fixture
def drop_arriving(monkeypatch):
    """Return a function that has workers of this process drop the next rows; it returns an event of the first loss."""

    def begin():
        dropped = threading.Event()
        monkeypatch.setattr(Inlet, "_take", lambda *_: dropped.set())
        return dropped

    return begin


def test_closing_client_sends_again_after_its_connection_broke(
    small_cluster, drop_arriving, monkeypatch, wait_until, tmp_path
):
    out, cluster = tmp_path / "out", small_cluster(processes=False)
    with Client(cluster, set_as_default=False) as keeper:
        job = de.submit(followed(out, de.sources.Push(SCHEMA)), keeper, checkpoint=tmp_path / "c")
        with Client(cluster, set_as_default=False) as closing:
            mine = de.job(job.name, closing)
            mine.send(table(0, 0, 5), wait=True)
            take = Inlet._take
            dropped = drop_arriving()
            mine.send(table(0, 5, 10))
            assert dropped.wait(60)
            outlet = sender_of(mine)._outlet
            closing.loop.add_callback(outlet._duplex.close)
            wait_until(lambda: outlet.ended, "the connection has broken")
            monkeypatch.setattr(Inlet, "_take", take)
        job.end_of_input()
        job.wait(**RUN)
        assert_each_row_once(job, out, {0: 10})


def test_stopped_job_leaves_no_rows_at_its_client(small_cluster, drop_arriving, wait_until, caplog, tmp_path):
    with Client(small_cluster(processes=False), set_as_default=False) as client:
        drop_arriving()
        job = de.submit(followed(tmp_path / "out", de.sources.Push(SCHEMA)), client, checkpoint=tmp_path / "c")
        job.send(table(0, 0, 5))
        assert senders_of(client).uncertain_rows == 5
        job.stop()
        wait_until(lambda: sender_of(job).idle, "the client has forgotten the rows", timeout=60)
        with pytest.raises(JobEnded):
            job.send(table(0, 5, 10))
    assert "may not have been taken" not in caplog.text


def test_end_of_input_of_a_stopped_job_says_that_it_is_stopped(client, tmp_path):
    job = de.submit(followed(tmp_path / "out", de.sources.Push(SCHEMA)), client, checkpoint=tmp_path / "c")
    job.send(table(0, 0, 5), wait=True)
    job.stop(savepoint=tmp_path / "saved")
    with pytest.raises(JobEnded, match="job 'durable' is stopped: it takes no more rows"):
        job.end_of_input()


def test_sources_that_may_lose_rows_keep_none(client, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "checkpoints"
    job = de.submit(followed(out, de.sources.Push(SCHEMA, replay="at-most-once")), client, checkpoint=folder)
    job.send(table(1, 0, 100))
    job.end_of_input()
    job.wait(**RUN)
    assert_each_row_once(job, out, {1: 100})
    assert not (folder / "spool").exists()


def test_rows_of_a_queue_are_read_once_by_a_job_that_resumes(client, wait_until, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "checkpoints"
    writing = de.Topology("writing")
    writing.source("rows", de.sources.Push(SCHEMA)).sink(de.sinks.DaskQueue("between", limit=4), name="out")
    writer = de.submit(writing, client)
    reader = de.submit(
        followed(out, de.sources.DaskQueue("between", SCHEMA)), client, checkpoint=folder, checkpoint_interval="1h"
    )
    count = 0
    for stops in range(3):
        for _ in range(8):
            writer.send(table(1, count, count + 5), wait=True)
            count += 5
        if stops < 2:
            wait_until(lambda job=reader: job.metrics()["rows"].sum() > 0, "rows are processed")
            if stops == 1:
                reader.checkpoint()
            reader.stop()
            reader = de.resume(folder, client)
    writer.end_of_input()
    writer.wait(**RUN)
    reader.wait(**RUN)
    assert_each_row_once(reader, out, {1: count})
