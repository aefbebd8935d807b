"""A Spark writer bounds its bytes in flight when the job is slower."""

from __future__ import annotations

import asyncio
import threading
import time

import pyarrow as pa
import pytest
from distributed.comm.core import CommClosedError
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType, VariantType

from dask_elastic import sources
from dask_elastic.runtime.protocol.handoff_calls import StagingPlaces
from dask_elastic.spark import background_loop, data_source, staged_partition, staging_connection
from dask_elastic.spark.data_source import BatchWriter, Staged
from dask_elastic.spark.staged_partition import stage
from dask_elastic.spark.staging_connection import WINDOW
from dask_elastic.spark.target import Target
from dask_elastic.vocab.epoch import NAMED, AttemptId, SpoolFile, StagedPart
from dask_elastic.vocab.errors import HandoffError, JobEnded, NodeLost, TopologyError

ROWS = pa.record_batch({"n": pa.array(range(40_000), pa.int64())})
CHUNK = ROWS.serialize().size


class SlowWorker:
    """A comm to a worker that acknowledges a chunk only on `read`, and refuses all chunks after a given number."""

    peer_address = "tcp://slow"

    def __init__(self, refuses_after=float("inf")):
        self.refuses_after = refuses_after
        self.unacknowledged: list[int] = []
        self.most = 0
        self.taken = 0
        self.aborted = False
        self.ended = False

    async def write(self, message):
        if "begin" in message:
            self.unacknowledged.append(0)
        elif "chunk" in message:
            self.unacknowledged.append(message["chunk"].data.nbytes)
            self.most = max(self.most, sum(self.unacknowledged))
        self.ended |= "end" in message

    async def read(self):
        await asyncio.sleep(0)
        if not self.unacknowledged:
            assert self.ended
            return {"staged": []}
        if self.taken > self.refuses_after:
            return {"error": staging_connection.pickle.dumps(HandoffError("no more"))}
        self.taken += 1
        return {"taken": self.unacknowledged.pop(0)}

    def abort(self):
        self.aborted = True


@pytest.fixture
def stage_into(monkeypatch):
    """Return a function that stages a number of chunks at a slow worker."""

    def run(worker, chunks, rows=ROWS):
        async def connected(target, address, seconds):
            return worker

        monkeypatch.setattr(staging_connection, "_connected", connected)
        monkeypatch.setattr(staging_connection, "_IDLE", {})
        places = StagingPlaces(1, "rows", ("tcp://slow",))
        target = Target("tcp://scheduler", "job")
        return stage(target, AttemptId("q", 0, 0, "a"), places, (rows for _ in range(chunks)))

    return run


def test_bytes_in_flight_are_bounded_by_window_and_one_chunk(stage_into):
    worker = SlowWorker()
    chunks = 4 * WINDOW // CHUNK
    part = stage_into(worker, chunks)
    assert part.rows == chunks * ROWS.num_rows
    assert worker.taken == chunks + 1  # the first message is acknowledged, too
    assert WINDOW - CHUNK <= worker.most <= WINDOW + CHUNK


def test_refusal_of_worker_is_raised_and_closes_the_connection(stage_into):
    worker = SlowWorker(refuses_after=3)
    with pytest.raises(HandoffError, match="no more"):
        stage_into(worker, 4 * WINDOW // CHUNK)
    staging_connection.background_loop().run(asyncio.sleep(0))
    assert worker.aborted
    assert not worker.ended


def test_digest_does_not_depend_on_the_order_of_columns(stage_into):
    rows = pa.record_batch({"b": [1, 2], "a": ["x", "y"], "c": [2, 1]})
    part = stage_into(SlowWorker(), 1, rows)
    assert stage_into(SlowWorker(), 1, rows.select(["c", "a", "b"])).digest == part.digest
    swapped = rows.rename_columns(["c", "a", "b"])
    assert stage_into(SlowWorker(), 1, swapped).digest != part.digest


def test_lost_worker_is_named_with_its_job(stage_into):
    class LostWorker(SlowWorker):
        async def read(self):
            if self.taken == 2:
                raise CommClosedError("in <TCP>: Stream is closed")
            return await super().read()

    worker = LostWorker()
    with pytest.raises(HandoffError, match=r"job 'job': worker tcp://slow closed the connection .*Stream is closed"):
        stage_into(worker, 4 * WINDOW // CHUNK)


def test_abort_of_an_ended_job_does_not_hide_why_the_epoch_failed(monkeypatch):
    def ended(target, call):
        raise NodeLost("worker tcp://a:1 of job 'job' has left the cluster")

    monkeypatch.setattr(data_source, "call_scheduler", ended)
    part = StagedPart(AttemptId("q", 0, 0, "a"), 0, 1, 1)
    BatchWriter(Target("tcp://scheduler", "job")).abort([Staged("q", 0, 1, "", "rows", NAMED, part)])


@pytest.mark.parametrize(
    "kind",
    [
        VariantType(),
        ArrayType(StructType([StructField("x", VariantType())])),
        MapType(StringType(), VariantType()),
    ],
)
def test_variants_are_refused_by_source_and_writer(kind):
    schema = StructType([StructField("a", StringType()), StructField("v", kind)])
    with pytest.raises(TopologyError, match="columns v contain variants"):
        sources.Spark(schema)
    writing = data_source.DaskElasticSource({"job": "job", "address": "tcp://scheduler"})
    for writer in (writing.writer, writing.streamWriter):
        with pytest.raises(HandoffError, match="columns v contain variants"):
            writer(schema, False)


class RestartingJob:
    """A spooled source whose worker is lost after some chunks; the scheduler answers with the next one."""

    def __init__(self, monkeypatch, chunks, losses=1, run="run"):
        self.chunks, self.losses, self.run = chunks, losses, run
        self.asked = 0
        self.taken: dict[str, list[int]] = {}
        monkeypatch.setattr(staged_partition, "AttemptSender", self.sender)
        monkeypatch.setattr(staged_partition, "call_scheduler", self.places)
        monkeypatch.setattr(staged_partition, "FIRST_WAIT", 0.001)

    def places(self, target, call):
        self.asked += 1
        return StagingPlaces(1 + self.asked, "rows", ("tcp://next",), self.run, True)

    def sender(self, target, address, seconds):
        job = self

        class Sender:
            def begin(self, begin):
                self.name, self.generation = begin.attempt.attempt, begin.generation
                job.taken[self.name] = []

            def put(self, chunk):
                self.lose()
                rows = pa.ipc.read_record_batch(chunk, ROWS.schema)
                job.taken[self.name].append(rows["n"][0].as_py())

            def end(self):
                self.lose()
                return SpoolFile(f"{self.name}.arrows", 1, "crc32:0")

            def lose(self):
                if self.generation <= job.losses and len(job.taken[self.name]) == job.chunks:
                    raise HandoffError("the connection broke")

            def abort(self):
                pass

        return Sender()


def test_dead_worker_is_not_dialled_until_the_timeout_of_dask_when_rows_can_be_sent_again(monkeypatch):
    dialled = []

    async def connect(address, timeout, **options):
        dialled.append((address, timeout))
        raise OSError("refused")

    monkeypatch.setattr(staging_connection, "connect", connect)
    monkeypatch.setattr(staging_connection, "_IDLE", {})
    restarted = StagingPlaces(2, "rows", ("tcp://next",), "another run", True)
    monkeypatch.setattr(staged_partition, "call_scheduler", lambda target, call: restarted)
    for spooled in (True, False):
        places = StagingPlaces(1, "rows", ("tcp://dead",), "run", spooled)
        with pytest.raises(HandoffError, match="tcp://dead cannot be reached"):
            stage(Target("tcp://scheduler", "job"), AttemptId("q", 0, 0, "a"), places, [ROWS])
    assert dialled == [("tcp://dead", staged_partition.CONNECT_SECONDS), ("tcp://dead", None)]


@pytest.mark.parametrize(("chunks", "losses"), [(0, 1), (3, 1), (3, 3), (6, 2)])
def test_rows_are_sent_again_after_a_restart(monkeypatch, chunks, losses):
    monkeypatch.setattr(staged_partition, "KEPT_BYTES", 100_000)
    job = RestartingJob(monkeypatch, chunks, losses)
    parts = [ROWS.slice(at, 5_000) for at in range(0, 30_000, 5_000)]
    places = StagingPlaces(1, "rows", ("tcp://first", "tcp://second"), "run", True)
    part = staged_partition.stage(Target("tcp://scheduler", "job"), AttemptId("q", 0, 1, "a"), places, iter(parts))
    assert job.asked == losses
    assert (part.rows, part.instance, part.attempt.attempt) == (30_000, 0, f"a-{losses}")
    assert job.taken[part.attempt.attempt] == [each["n"][0].as_py() for each in parts]
    assert part.file == SpoolFile(f"a-{losses}.arrows", 1, "crc32:0")


def test_rows_are_not_sent_again_to_another_run_or_without_a_spool(monkeypatch):
    job = RestartingJob(monkeypatch, 1, run="another run")
    target, attempt = Target("tcp://scheduler", "job"), AttemptId("q", 0, 0, "a")
    for spooled, asked in ((True, 1), (False, 1)):
        places = StagingPlaces(1, "rows", ("tcp://first",), "run", spooled)
        with pytest.raises(HandoffError, match="the connection broke"):
            staged_partition.stage(target, attempt, places, iter([ROWS, ROWS]))
        assert job.asked == asked
    monkeypatch.setattr(staged_partition, "RETRY_SECONDS", 0.0)
    job = RestartingJob(monkeypatch, 1, losses=10)
    with pytest.raises(HandoffError, match="the connection broke"):
        staged_partition.stage(target, attempt, StagingPlaces(1, "rows", ("tcp://first",), "run", True), [ROWS, ROWS])
    assert job.asked == 1


def test_threads_that_call_first_at_the_same_time_share_one_loop(monkeypatch):
    both, begun = threading.Barrier(2), []

    class SlowLoop:
        def __init__(self):
            begun.append(self)
            time.sleep(0.05)

    def first_call():
        both.wait(100)
        found.append(background_loop.background_loop())

    found = []
    monkeypatch.setattr(background_loop, "_LOOPS", {})
    monkeypatch.setattr(background_loop, "BackgroundLoop", SlowLoop)
    threads = [threading.Thread(target=first_call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert found == [begun[0]] * 2


class HungWorker(SlowWorker):
    """Takes the first chunk, and answers nothing more; its connection stays open."""

    async def read(self):
        if self.taken == 2:
            await asyncio.Event().wait()
        return await super().read()


@pytest.mark.parametrize(
    ("now", "elsewhere"),
    [
        (StagingPlaces(1, "rows", ("tcp://slow",)), False),
        (StagingPlaces(2, "rows", ("tcp://slow",)), True),
        (StagingPlaces(1, "rows", ("tcp://other",)), True),
    ],
)
def test_worker_that_hangs_is_left_when_the_job_runs_elsewhere(stage_into, monkeypatch, now, elsewhere):
    asked = []

    async def call_scheduler(target, call):
        asked.append(call)
        if len(asked) > 3:
            raise JobEnded("job 'job' has ended")
        return now

    monkeypatch.setattr(staging_connection, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(staging_connection, "_call_scheduler", call_scheduler)
    worker = HungWorker()
    with pytest.raises(
        HandoffError if elsewhere else JobEnded, match="runs elsewhere by now" if elsewhere else "ended"
    ):
        stage_into(worker, 4 * WINDOW // CHUNK)
    assert len(asked) == (1 if elsewhere else 4)
    staging_connection.background_loop().run(asyncio.sleep(0))
    assert worker.aborted
