"""Real Spark sends epochs to a job on a Dask cluster in other processes: each row is in the state once."""

from __future__ import annotations

import json
import shutil
import threading
import time
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster, Queue

import dask_elastic as de
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job_view import one_line
from dask_elastic.runtime.protocol.handoff_calls import HandoffPlaces
from dask_elastic.runtime.protocol.job_calls import Describe
from dask_elastic.spark import SparkFailed, drain, handoff, into, register
from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.staging_connection import call_scheduler as call_from_spark
from dask_elastic.spark.staging_connection import end_source
from dask_elastic.spark.target import Target
from dask_elastic.vocab.errors import BatchMismatch, HandoffError, JobFailed

KEYS = 10
NOW = {"availableNow": True}


def counting(client, schema, name="counting", **options):
    """Submit a job that counts and sums by key."""
    topology = de.Topology(name)
    rows = topology.source("rows", de.sources.Spark(schema, parallel=2, **options))
    rows.key_by("k").compute({"rows": de.aggregate.Count(), "sum": de.aggregate.Sum("v")}, name="per_key")
    return de.submit(topology, client)


def numbers(spark, begin, end, partitions=4):
    return spark.range(begin, end, 1, partitions).selectExpr(f"id % {KEYS} as k", "id as v")


def check(job, begin, end):
    """Assert that the state contains each number of a range exactly once."""
    state = job.state("per_key").to_pandas().set_index("k")
    for key in range(KEYS):
        expected = range(begin + (key - begin) % KEYS, end, KEYS)
        assert (int(state.loc[key, "rows"]), int(state.loc[key, "sum"])) == (len(expected), sum(expected))


@pytest.fixture
def files(tmp_path):
    """A directory for arriving files."""
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def arrive(spark, folder: Path, name: str, begin: int, end: int) -> None:
    """Write a file atomically, as Spark's file source requires."""
    hidden = folder.parent / f"{name}.writing"
    hidden.write_text("\n".join(json.dumps({"k": n % KEYS, "v": n}) for n in range(begin, end)))
    hidden.rename(folder / f"{name}.json")


def read(spark, folder):
    """Return a stream that reads one file per micro-batch."""
    return spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 1).json(str(folder))


def start(stream, job, folder, end=None, **trigger):
    """Start a query that writes to a job, or with the given options."""
    writer = stream.writeStream.format("dask_elastic").options(**(job if isinstance(job, dict) else into(job)))
    writer = writer if end is None else writer.option("end", end)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**(trigger or NOW)).start()


def heard(spark):
    """Wait until listeners have handled all events of queries; Spark itself would wait for ten seconds only."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(100_000)


def test_stream_is_counted_once_and_its_end_finishes_the_job(spark, client, files, wait_until):
    register(spark)
    for number in range(3):
        arrive(spark, files, f"part-{number}", number * 100, number * 100 + 100)
    stream = read(spark, files)
    job = counting(client, stream.schema)
    query = start(stream, job, files.parent, end="false", processingTime="100 milliseconds")

    def counted():
        state = job.state("per_key").to_pandas()
        return len(state) and state["rows"].sum() == 300

    wait_until(counted, "the files are counted")
    query.stop()
    # The query resumes from its checkpoint under its old id, and reads the files that arrived meanwhile.
    arrive(spark, files, "part-3", 300, 400)
    query = start(stream, job, files.parent, processingTime="100 milliseconds")
    query.processAllAvailable()
    assert job.status == "running"
    query.stop()
    job.wait(100, progress=False)
    check(job, 0, 400)
    drain(query, job, timeout=60)  # no effect on an ended query and job


def test_failed_query_leaves_job_running_and_its_restart_finishes_it(spark, client, files, wait_until, caplog):
    register(spark)
    mark = str(files.parent / "failed")

    def fails_once(batches):
        for batch in batches:
            if 100 in batch["v"].to_pylist() and not Path(mark).exists():
                Path(mark).touch()
                raise RuntimeError("an attempt fails")
            yield batch

    for number in range(2):
        arrive(spark, files, f"part-{number}", number * 100, number * 100 + 100)
    stream = read(spark, files).mapInArrow(fails_once, "k bigint, v bigint")
    job = counting(client, stream.schema)
    failing = start(stream, job, files.parent)
    with pytest.raises(SparkFailed, match="an attempt fails"), spark_errors("counting"):
        failing.awaitTermination()
    heard(spark)
    assert job.status == "running"
    start(stream, job, files.parent).awaitTermination()
    job.wait(100, progress=False)
    check(job, 0, 200)
    # The scheduler in this process may warn of a busy machine.
    assert [record.getMessage() for record in caplog.records if record.name == "dask_elastic.spark"] == []


def test_query_without_rows_finishes_the_job_and_other_queries_do_not(spark, client, files, caplog):
    register(spark)
    stream = read(spark, files)
    job = counting(client, stream.schema)
    stream.writeStream.format("noop").option("checkpointLocation", str(files.parent / "noop")).trigger(
        **NOW
    ).start().awaitTermination()
    heard(spark)
    assert job.status == "running"
    options = into(job)
    start(stream, options, files.parent).awaitTermination()
    job.wait(100, progress=False)
    # A listener cannot end the source of a forgotten job; it logs that.
    job.forget()
    start(stream, options, files.parent).awaitTermination()
    heard(spark)
    assert "could not be ended" in caplog.text


def test_writer_of_earlier_generation_does_not_end_the_next_one(client):
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    before = Target.from_options(into(counting(client, schema)))
    de.job("counting", client).forget()
    job = counting(client, schema)
    end_source(before)
    with pytest.raises(TimeoutError):
        job.wait(1.0, progress=False)
    end_source(Target.from_options(into(job)))
    job.wait(100, progress=False)
    end_source(before)


def test_repeated_epoch_is_processed_once(spark, client, files):
    register(spark)
    arrive(spark, files, "part-0", 0, 100)
    stream = spark.readStream.schema("k bigint, v bigint").json(str(files))
    job = counting(client, stream.schema)
    start(stream, job, files.parent, end="false").awaitTermination()
    # As if Spark had died between the commit of the epoch and its own log of it.
    for commit in (files.parent / "checkpoint" / "commits").glob("*0*"):
        commit.unlink()
    arrive(spark, files, "part-1", 100, 200)
    start(stream, job, files.parent).awaitTermination()
    job.wait(100, progress=False)
    check(job, 0, 200)


def test_epoch_repeated_with_other_rows_fails_the_job(spark, client):
    job = counting(client, numbers(spark, 0, 1).schema)
    handoff(numbers(spark, 0, 1000), 5, job, query="q")
    handoff(numbers(spark, 0, 1000, partitions=3), 5, job, query="q")
    with pytest.raises(SparkFailed, match=r"epoch 5 was committed with 1000 rows .* comes again with 999 rows"):
        handoff(numbers(spark, 1, 1000), 5, job, query="q")
    with pytest.raises(JobFailed, match="comes again"):
        job.wait(100, progress=False)
    assert isinstance(job.error, BatchMismatch)


def test_query_that_skips_or_repeats_rows_is_refused_and_the_job_keeps_running(spark, client, files):
    register(spark)
    arrive(spark, files, "part-0", 0, 100)
    stream = spark.readStream.schema("k bigint, v bigint").json(str(files))
    job = counting(client, stream.schema)
    start(stream, job, files.parent, end="false").awaitTermination()
    commits = files.parent / "checkpoint" / "commits"
    committed = (commits / "0").read_text()
    shutil.rmtree(files.parent / "checkpoint")
    with pytest.raises(SparkFailed, match="up to 0 with the same checkpoint"), spark_errors("repeating"):
        start(stream, job, files.parent).awaitTermination()
    # As if this query had sent its first micro-batch to an earlier job.
    commits.mkdir(exist_ok=True)
    (commits / "0").write_text(committed)
    arrive(spark, files, "part-1", 100, 200)
    with pytest.raises(SparkFailed, match="sends epoch 1, but epoch 0 is not in this job"), spark_errors("skipping"):
        start(stream, job, files.parent).awaitTermination()
    assert job.status == "running"
    job.end_of_input()
    job.wait(100, progress=False)
    check(job, 0, 100)


def test_rows_of_failed_attempts_are_dropped(spark, client, tmp_path):
    marks = str(tmp_path)

    def fails_once(batches):
        """Fail once at the end of the second partition, after its rows were sent."""
        from pyspark import TaskContext

        mark = Path(marks) / "failed"
        yield from batches
        if TaskContext.get().partitionId() == 1 and not mark.exists():
            mark.touch()
            raise RuntimeError("an attempt fails")

    frame = numbers(spark, 0, 50_000, partitions=2)
    failing = frame.mapInArrow(fails_once, frame.schema)
    job = counting(client, frame.schema)
    with pytest.raises(SparkFailed, match="an attempt fails"):  # local Spark does not retry: the epoch is aborted
        handoff(failing, 0, job, query="q")
    handoff(failing, 0, job, query="q")
    job.end_of_input()
    job.wait(100, progress=False)
    check(job, 0, 50_000)


def test_stolen_wake_ups_lose_no_rows(spark, client):
    job = counting(client, numbers(spark, 0, 1).schema, name="wake")
    stop, stolen = threading.Event(), []

    def steal():
        queues = [Queue(f"wake/rows[{instance}]", client=client) for instance in range(2)]
        while not stop.is_set():
            for queue in queues:
                stolen.extend(queue.get(batch=True))

    target = Target.from_options(into(job))
    call_from_spark(target, HandoffPlaces("wake", "rows"))
    thief = threading.Thread(target=steal)
    thief.start()
    try:
        for epoch in range(4):
            handoff(numbers(spark, epoch * 1000, epoch * 1000 + 1000), epoch, job, query="q")
    finally:
        stop.set()
        thief.join()
    job.end_of_input()
    job.wait(100, progress=False)
    check(job, 0, 4000)


def test_full_queue_blocks_commit_and_bounds_memory(spark, client, wait_until):
    schema = numbers(spark, 0, 1).schema
    job = counting(client, schema, name="slow", epochs=1, staging="256KiB", rate=16_000)
    ends, waited = [0], threading.Event()

    def send(rows):
        handoff(numbers(spark, ends[-1], ends[-1] + rows), len(ends) - 1, job, query="q")
        ends.append(ends[-1] + rows)

    def feed():
        rows = 40_000
        while not waited.is_set():
            send(rows)
            # Waits while the epoch before is read, unless Spark is slower than the source.
            send(100)
            rows *= 2
        send(40_000)

    seen = []

    def progress():
        seen.extend(call_from_spark(Target.from_options(into(job)), Describe("slow")).handoffs)
        return seen

    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(feed)
        try:
            wait_until(lambda: feeding.done() or any(each.waiting == 1 for each in progress()), "an epoch waits")
        finally:
            waited.set()
        while not feeding.done():
            progress()
            futures.wait([feeding], 0.05)
    feeding.result()
    assert max(each.waiting for each in seen) == 1
    assert 0 < max(each.staged for each in seen) <= 2 * 256 * 1024  # two instances
    assert max(each.rows_per_second for each in seen) > 0
    described = call_scheduler(client, Describe("slow"))
    assert [(each.epoch, each.epochs, each.rows) for each in described.handoffs] == [
        (len(ends) - 2, len(ends) - 1, ends[-1])
    ]
    assert f"rows ← epoch {len(ends) - 2}, {ends[-1]:,} rows, " in one_line(described)
    job.end_of_input()
    job.wait(100, progress=False)
    check(job, 0, ends[-1])

    def peak(dask_worker):
        sources = dask_worker.plugins["dask-elastic-worker"].runtime.job_parts["slow"].sources
        return max((thread.mailbox.peak for thread in sources.values()), default=0)

    assert 0 < max(client.run(peak).values()) <= 256 * 1024


def test_drained_job_refuses_further_epochs_and_keeps_all_rows(spark, client):
    job = counting(client, numbers(spark, 0, 1).schema)
    handoff(numbers(spark, 0, 100_000), 0, job, query="q")
    job.drain(60)
    check(job, 0, 100_000)
    with pytest.raises(SparkFailed, match="is finished: it takes no more rows"):
        handoff(numbers(spark, 0, 10), 1, job, query="q")


def test_event_time_of_spark_rows_advances_the_job(spark, client, wait_until):
    def hours(begin, end):
        return numbers(spark, begin, end, partitions=2).selectExpr("k", "v", "timestamp_seconds(3600 * v) as at")

    options = {"event_time": "at", "slack": "2 hours"}
    with dask.config.set({"elastic.idle-timeout": None}):
        job = counting(client, hours(0, 1).schema, name="timed", **options)

    def reached(hour):
        times = job.event_times()
        own = times.loc[times["operator"] == "per_key", "event_time"]
        return len(own) and (own == pd.Timestamp(3600 * hour, unit="s")).all()

    handoff(hours(0, 100), 0, job, query="q")
    # Each of the two partitions has its own instance; the second one starts at 50.
    wait_until(lambda: reached(49 - 2), "the watermark of the slower partition")
    handoff(hours(100, 110), 1, job, query="q")
    wait_until(lambda: reached(104 - 2), "the watermark of the next micro-batch")
    job.drain(60)
    assert reached(109)
    assert job.event_times()["late"].sum() == 0


def test_foreach_batch_can_send_each_micro_batch_by_handoff(spark, client, files):
    for number in range(2):
        arrive(spark, files, f"part-{number}", number * 100, number * 100 + 100)
    stream = read(spark, files)
    job = counting(client, stream.schema)
    epochs = []

    def run(**options):
        def send(frame, epoch):
            handoff(frame, epoch, job, **options)
            epochs.append(epoch)

        query = stream.writeStream.foreachBatch(send).option("checkpointLocation", str(files.parent / "c"))
        query.trigger(**NOW).start().awaitTermination()
        heard(spark)

    run(end=False)
    assert (epochs, job.status) == ([0, 1], "running")
    arrive(spark, files, "part-2", 200, 300)
    run()
    job.wait(100, progress=False)
    assert epochs == [0, 1, 2]
    check(job, 0, 300)


def test_query_stopped_within_a_handoff_finishes_the_job(spark, client, files, wait_until):
    arrive(spark, files, "part-0", 0, 100)
    stream = read(spark, files)
    job = counting(client, stream.schema)
    begun, released = files.parent / "begun", files.parent / "released"
    waiting = wait_within_task(str(begun), str(released))

    def send(frame, epoch):
        rows = frame if epoch == 0 else frame.mapInArrow(waiting, frame.schema)
        handoff(rows, epoch, job)
        with pytest.raises(HandoffError, match=r"source 'rows': .* has already handed over rows of epoch 0"):
            handoff(rows.limit(1), epoch, job, source="rows")
        handoff(rows.where("k < 0"), epoch, job, query="negative")
        arrive(spark, files, "part-1", 100, 200)

    query = stream.writeStream.foreachBatch(send).option("checkpointLocation", str(files.parent / "c"))
    query = query.trigger(processingTime="100 milliseconds").start()
    try:
        wait_until(begun.exists, "the second handoff begins")
        query.stop()
    finally:
        released.touch()
    job.wait(100, progress=False)
    assert query.exception() is None
    check(job, 0, 100)


def wait_within_task(begun: str, released: str):
    """Return a function on batches that waits until the second file exists, or its executor cancels it."""

    def work(batches):
        Path(begun).touch()
        deadline = time.monotonic() + 100
        while not Path(released).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield from batches

    return work


def test_handoff_to_cluster_with_tls(spark):
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", security=True) as cluster,
        Client(cluster) as client,
    ):
        frame = numbers(spark, 0, 1000)
        job = counting(client, frame.schema)
        assert into(job)["address"].startswith("tls://")
        handoff(frame, 0, job, query="q", end=True)
        job.wait(100, progress=False)
        check(job, 0, 1000)
