"""The threads of remote tasks: which of them runs the logic while the thread that runs idle tasks is blocked."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from dask_elastic.executor.remote import RemotePart
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.transport.run_thread import RunThread
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.remote_threads import RemoteThreads
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

SECONDS = 20.0


def until(holds):
    """Wait for a condition."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the condition does not come true"
        time.sleep(0.001)


class Logic:
    """Notes the thread that runs it."""

    def __init__(self):
        self.ran, self.by = threading.Event(), None

    def process(self, batch):
        """Note the thread."""
        self.by = threading.current_thread()
        self.ran.set()
        return []

    def close(self):
        """Nothing is open."""


def test_upkeep_does_not_run_the_logic_of_remote_tasks_that_wait_behind_a_blocked_run():
    errors, logic, now = [], Logic(), [0.0]
    threads = JobThreads("job", errors.append)
    threads.runs = RunThread(threads, clock=lambda: now[0])
    part = RemotePart(ExecutorId("per_key", 0), KeySpace(1, 4), threading.Lock)
    for _ in range(9):
        # Too long for a thread that reads a connection.
        part._inline.add(1, 0.001)
    exchange = SimpleNamespace(send_messages=lambda *_: None)
    remote = RemoteThreads(part, lambda *_: logic, threads, exchange, 0, 0)
    blocked, resume = threading.Event(), threading.Event()
    try:
        remote.receive(m.StartTask(0, (0, 1)))
        until(lambda: not part.is_busy)
        assert threads.leave_run(lambda: (blocked.set(), resume.wait(SECONDS)))
        assert blocked.wait(SECONDS)
        rows = Batch(pa.record_batch({"key": [1]}), np.array([1], dtype=np.uint64), 0.0)
        remote.receive(m.SubBatch(0, 0, rows, False))
        now[0] = 1.0
        with TURNS.without_waiting():
            (overdue,) = threads.overdue()
            overdue()
        assert logic.ran.wait(SECONDS)
        assert logic.by is not threading.current_thread()
        assert logic.by.name.endswith("remote-0")
    finally:
        resume.set()
        threads.end()
        remote.abort()
        assert threads.join(SECONDS) == []
    assert errors == []
