"""Barriers and watermarks of a source instance do not depend on which batches wait to be sent."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.executor.control_records.source_clock import SourceClock
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.sources.source_thread import SourceThread
from dask_elastic.topology.source import Source
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

SECONDS = 60
ORIGIN = ExecutorId("rows", 0)


class Yields(Source):
    def __init__(self, read):
        self._read = read

    def read(self, context):
        yield from self._read()


class Departed:
    """An exchange that notes rows, barriers and watermarks in their order; each batch waits until it may leave."""

    def __init__(self):
        self.idle_watch = SimpleNamespace(note=lambda: None)
        self.sent = []
        self.sending, self.may_leave, self.barrier = threading.Event(), threading.Event(), threading.Event()

    def deliver_now(self, origin, outputs):
        self.sent += [batch.rows["n"].to_pylist() for _, batch in outputs]
        self.sending.set()
        assert self.may_leave.wait(SECONDS)
        return 0, ()

    def emit_barrier(self, barrier):
        self.sent.append(barrier.checkpoint)
        self.barrier.set()

    def emit_watermark(self, watermark):
        self.sent.append(watermark)

    def join_bytes(self, origin):
        return None

    def backpressured(self, origin):
        return 0.0


@pytest.fixture
def made():
    """Make a source, with its exchange; waits for its end."""
    sources = []

    def make(read, clock=None):
        exchange, errors, reached = Departed(), [], []
        threads = JobThreads("job", errors.append)
        emitter = SimpleNamespace(
            emit=lambda batches, due: [(ExecutorId("out", 0), Batch(rows, None, due)) for rows in batches]
        )
        source = SourceThread(
            ORIGIN, Yields(read), 1, emitter, Mailbox(), clock, threads, exchange, None, None,
            lambda identity: None, lambda *given: reached.append(given), SourcePosition(),
        )  # fmt: skip
        sources.append((source, threads, errors))
        return source, exchange, reached

    yield make
    for source, threads, errors in sources:
        source.abort()
        assert threads.join(SECONDS) == []
        assert errors == []


def row(number):
    return pa.record_batch({"n": [number], "at": pa.array([number], pa.timestamp("s"))})


def test_barrier_leaves_although_only_an_empty_batch_waits(made):
    empty_waits, ends = threading.Event(), threading.Event()

    def read():
        yield row(1), "behind the row"
        assert exchange.sending.wait(SECONDS)
        yield row(2).slice(0, 0), "behind nothing"
        empty_waits.set()
        assert ends.wait(SECONDS)

    source, exchange, _ = made(read)
    source.start()
    try:
        assert empty_waits.wait(SECONDS)
        source.begin_checkpoint(1)
        exchange.may_leave.set()
        assert exchange.barrier.wait(SECONDS), "the barrier waits for another row"
    finally:
        exchange.may_leave.set()
        ends.set()
    assert exchange.sent == [[1], 1]


def test_source_that_holds_rows_is_not_idle_when_a_barrier_is_sent(made):
    clock = SourceClock(ORIGIN, "at", idle_after=0.0, now=time.monotonic())
    source, exchange, reached = made(lambda: iter(()), clock)
    exchange.may_leave.set()
    source._read_ahead.hold(row(1), 0.0)
    source.begin_checkpoint(1)
    rows, _ = next(source._taken())
    assert rows["n"].to_pylist() == [1]
    assert exchange.sent == [1]
    assert reached == [(1, ORIGIN, SourcePosition())]
