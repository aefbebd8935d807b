"""A row behind a barrier is in the next transaction of a sink, however the threads that bring rows are delayed."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.runtime.transport.lease_gate import LeaseGate
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.sink_thread import CheckpointEvent, SinkThread
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

EARLY, SLOW, SINK = ExecutorId("count", 0), ExecutorId("count", 1), ExecutorId("out", 0)


class Writer:
    """Keeps what it is asked to do, in order; the write of a slow row waits."""

    def __init__(self):
        self.steps = []
        self.writing, self.go_on, self.prepared = threading.Event(), threading.Event(), threading.Event()

    def write(self, rows):
        [name] = rows["name"].to_pylist()
        if name == "slow":
            self.writing.set()
            assert self.go_on.wait(100)
        self.steps.append(name)

    def prepare(self, checkpoint):
        self.steps.append(f"checkpoint {checkpoint}")

    def abort(self):
        pass


class DelayedLease(LeaseGate):
    """Delays a thread after it has looked whether the sink waits for barriers: until the barrier of its own input."""

    def __init__(self, writer, barrier_is_handled):
        super().__init__(needed=False)
        self.writer, self.barrier_is_handled = writer, barrier_is_handled

    @property
    def is_open(self):
        if threading.current_thread().name == "early":
            self.writer.go_on.set()
            self.barrier_is_handled()
        return True


@pytest.fixture
def threads():
    made = JobThreads("job", lambda error: None)
    yield made
    made.end()
    made.join(100)


def wait_until(condition):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def batch(name):
    return Batch(pa.record_batch({"name": [name]}), None, 0.0)


def test_row_behind_a_barrier_is_not_in_its_checkpoint(threads):
    writer = Writer()
    keeper = SimpleNamespace(
        staging=None, committed=lambda *arguments: None, request=lambda: None, opened=lambda sink: None,
        prepared=lambda *arguments: writer.prepared.set(),
    )  # fmt: skip
    spec, exchange = SimpleNamespace(job="job", run="r", generation=1), SimpleNamespace(release=lambda *arguments: None)
    kind = SimpleNamespace(open=lambda context: writer)
    inputs = Inputs(SINK, [EARLY, SLOW])
    sink = SinkThread(spec, SINK, kind, inputs, threads, exchange, None, lambda sink: None, keeper)

    def idle():
        return sink._waiting._idle

    def barrier_is_handled():
        wait_until(lambda: sink._alignment.is_active and idle())

    threads.lease = DelayedLease(writer, barrier_is_handled)
    for _ in range(50):  # short writes, which the thread that brings a row makes
        sink._cost.add(1, 1e-5)
    sink.start()
    wait_until(idle)
    slow = threading.Thread(target=lambda: sink.offer(SLOW, batch("slow"), 1), name="slow")
    slow.start()
    assert writer.writing.wait(100)
    sink.tell(CheckpointEvent.BEGUN, 1)
    sink.receive_barrier(Barrier(EARLY, 1))
    early = threading.Thread(target=lambda: sink.offer(EARLY, batch("behind its barrier"), 1), name="early")
    early.start()
    for one in (early, slow):
        one.join(100)
    sink.receive_barrier(Barrier(SLOW, 1))
    assert writer.prepared.wait(100)
    wait_until(lambda: len(writer.steps) == 3)
    assert writer.steps == ["slow", "checkpoint 1", "behind its barrier"]
    sink.abort()
