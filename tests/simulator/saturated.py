"""A saturating source and one task on a virtual clock: batches are joined as in a job, with a given cost of a batch."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.task_queue import Work
from dask_elastic.meters import FlowWindow
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.transport.credit import PIPELINED
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

ROW_BYTES = 16
SOURCE, EXECUTOR = ExecutorId("source", 0), ExecutorId("compute", 0)
ROWS = pa.record_batch({"a": np.zeros(2**15, np.int64), "b": np.zeros(2**15, np.int64)})
HASHES = np.zeros(2**15, np.uint64)


@dataclass
class Saturated:
    """One task that is never idle: the source always has rows.

    Parameters
    ----------
    fixed, each : float
        Seconds that a batch and a row take.
    noise : float
        Mean of the additional seconds of a batch: one batch in five waits for the interpreter for five times as long.
    queue_time, inbox_time : float
        As the job's options.
    """

    fixed: float
    each: float
    noise: float = 0.0
    queue_time: float = 0.1
    inbox_time: float = 0.005
    seed: int = 0
    now: float = 0.0
    sizes: list[int] = field(default_factory=list)
    done: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)
        limits = ExecutorLimits(inbox_time=self.inbox_time)
        self.executor = ElasticExecutor(EXECUTOR, KeySpace(1, 1), 0, {0: 1}, [SOURCE], limits=limits)
        self.executor.start()
        self.window = FlowWindow(32 * 2**20, self.queue_time)
        self.used = self.batches = 0
        self.busy: list[tuple[float, int, int, float]] = []

    def collapse(self):
        """Begin in the worst state: a window of one row, and single-row batches that seemed expensive."""
        self.window.nbytes = 1
        for _ in range(100):
            self.executor.measures.cost.add(1, self.cost(1))
            self.executor.measures.service.add(1, self.cost(1))

    def cost(self, rows):
        waits = self.noise and self.random.random() < 0.2
        return self.fixed + rows * self.each + (self.random.exponential(5 * self.noise) if waits else 0.0)

    def _fill(self):
        while self.batches < PIPELINED or self.used < self.window.nbytes:
            rows = max(1, min(self.window.join_bytes // ROW_BYTES, 2**15))
            batch = Batch(ROWS.slice(0, rows), HASHES[:rows], self.now)
            self.used, self.batches = self.used + rows * ROW_BYTES, self.batches + 1
            block = self.executor.split(batch)
            self.executor.accept(block, SOURCE, batch, rows * ROW_BYTES, self.now)
        self.window.held_back()

    def _take(self):
        number, work = self.executor.take(0, self.now)
        assert isinstance(work, Work)
        busy = self.cost(work.rows)
        self.sizes.append(work.rows)
        heapq.heappush(self.busy, (self.now + busy, number, work.rows, busy))

    def run(self, until, batches=10**9):
        """Run up to a virtual time, or for some batches."""
        while self.now < until and batches > 0:
            batches -= 1
            self._fill()
            if not self.busy:
                self._take()
            self.now, number, rows, busy = heapq.heappop(self.busy)
            self.done.append((self.now, rows))
            for instruction in self.executor.done(0, number, busy, self.now):
                if isinstance(instruction, do.Release):
                    self.used, self.batches = self.used - instruction.nbytes, self.batches - 1
                    self.window.released(instruction.nbytes, self.now, instruction.wanted_more)
        return self

    def throughput(self, since):
        """Rows per second after a time."""
        return sum(rows for moment, rows in self.done if moment > since) / (self.now - since)

    def best(self):
        """Rows per second of the best constant size."""
        return max(rows / (self.fixed + self.noise + rows * self.each) for rows in (1 << bit for bit in range(15)))
