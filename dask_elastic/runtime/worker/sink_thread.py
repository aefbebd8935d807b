"""One instance of a sink on a thread of its own: it writes the outputs of the instances on its node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.executor.inputs import Inputs
from dask_elastic.executor.task_queue import JOIN_ROWS
from dask_elastic.meters import BatchCost, BriefWork, InlineCost
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.worker.buffers.output_buffer import OutputBuffer
from dask_elastic.runtime.worker.buffers.turn_queue import TurnQueue
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ElasticError, SinkError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

JOIN_SECONDS = 0.02
"""Waiting batches are joined as long as writing takes no longer than this beyond its fixed cost."""

INLINE_SECONDS = 0.0002
"""A write that is expected to take no longer is made by the thread that brings the batch."""


class Waiting(NamedTuple):
    """What waits for a sink: a batch and its credit, a watermark, or the end of an upstream instance."""

    origin: ExecutorId
    item: Batch | Watermark | None = None
    nbytes: int = 0


class SinkThread:
    """Writes the outputs of the instances on this node.

    Parameters
    ----------
    spec : JobSpec
        The job.
    identity : ExecutorId
        Which instance of which sink; its number is the node.
    sink : Sink
        The sink.
    inputs : Inputs
        The upstream instances on this node.
    threads : JobThreads
        Runs the thread.
    exchange : Exchange
        Returns credit.
    output_buffer : OutputBuffer
        Holds the rows of output queues.
    finished : callable
        Called when everything is written.
    """

    def __init__(
        self,
        spec: JobSpec,
        identity: ExecutorId,
        sink: Sink,
        inputs: Inputs,
        threads: JobThreads,
        exchange: Exchange,
        output_buffer: OutputBuffer,
        finished: Callable[[ExecutorId], None],
    ):
        self.identity = identity
        self.sink = sink
        self.threads = threads
        self.exchange = exchange
        node = instance = identity.index
        self._context = SinkContext(spec.job, identity.component, node, instance, output_buffer, spec.run)
        self._finished = finished
        self.rows = 0
        self.inputs = inputs
        self._waiting: TurnQueue[Waiting | None] = TurnQueue()
        self._cost = InlineCost()
        self._batch_cost = BatchCost()
        self._brief_work = BriefWork()
        self._writer: SinkWriter | None = None
        # Whether a write in another thread has failed.
        self._failed = False

    def start(self) -> None:
        """Start writing."""
        self.threads.start(str(self.identity), self._run)

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int, may_wait: bool = True) -> None:
        """Take a batch; a caller that may wait writes it itself, if the sink is idle and such writes are short."""
        is_short = may_wait and self._cost.allows(batch.rows.num_rows, INLINE_SECONDS)
        if self._failed or not is_short or not self._waiting.begin_turn():
            self._waiting.put(Waiting(origin, batch, nbytes))
            return
        assert self._writer is not None, "the thread opens the writer before it waits for batches"
        failed = True
        try:
            with self._explained():
                self._write(self._writer, [Waiting(origin, batch, nbytes)])
            failed = False
        finally:
            self._failed |= failed
            self._waiting.end_turn()

    def receive_watermark(self, watermark: Watermark) -> None:
        """Take a watermark of an upstream instance."""
        self._waiting.put(Waiting(watermark.origin, watermark))

    def input_ended(self, origin: ExecutorId) -> None:
        """Take the end of an upstream instance."""
        self._waiting.put(Waiting(origin))

    def abort(self) -> None:
        """Wake the thread, so that it sees that the job has ended."""
        self._waiting.put(None)

    def collected(self) -> list[pa.RecordBatch]:
        """Return the batches that the writer keeps for the client."""
        return [] if self._writer is None else self._writer.collected()

    def _run(self) -> None:
        complete = False
        with self._explained():
            with self._watched():
                self._writer = self.sink.open(self._context)
            try:
                complete = self._write_all(self._writer)
            finally:
                if not complete:
                    self._writer.abort()
        if complete:
            self._finished(self.identity)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ElasticError:
            raise
        except Exception as error:
            name = self.identity.component
            raise SinkError(f"sink {name!r} failed: {type(error).__name__}: {error}") from error

    def _write_all(self, writer: SinkWriter) -> bool:
        while self.inputs.open:
            taken = self._waiting.take()
            if taken is None or self.threads.ended or self._failed:
                return False
            origin, item, nbytes = taken
            match item:
                case None:
                    self.inputs.end(origin)
                case Watermark():
                    self.inputs.advance(item)
                case Batch():
                    self._write(writer, [Waiting(origin, item, nbytes), *self._more(item.rows)])
        with self._watched():
            writer.close()
        return True

    def _more(self, rows: pa.RecordBatch) -> list[Waiting]:
        """Return the batches behind one that are joined with it."""
        joined, most = rows.num_rows, self._limit()

        def fits(waiting: Waiting | None) -> bool:
            nonlocal joined
            if waiting is None or not isinstance(waiting.item, Batch):
                return False
            joined += waiting.item.rows.num_rows
            return joined <= most and bool(waiting.item.rows.schema.equals(rows.schema))

        return [waiting for waiting in self._waiting.take_while(fits) if waiting is not None]

    def _write(self, writer: SinkWriter, waiting: list[Waiting]) -> None:
        batches = [part.item.rows for part in waiting if isinstance(part.item, Batch)]
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        _, busy = TURNS.run(self._brief_work, rows.num_rows, lambda: self._write_rows(writer, rows))
        self.rows += rows.num_rows
        most = self._limit()
        self._cost.add(rows.num_rows, busy)
        self._batch_cost.add(rows.num_rows, busy)
        for part in waiting:
            self.exchange.release(part.origin, self.identity, part.nbytes, rows.num_rows < most)

    def _write_rows(self, writer: SinkWriter, rows: pa.RecordBatch) -> None:
        with self._watched():
            writer.write(rows)

    def _watched(self) -> AbstractContextManager[None]:
        """Note how long code of the sink runs."""
        return self.threads.user_calls.running(self.identity.component, "write")

    def _limit(self) -> int:
        """Return the most rows that are written at once."""
        return min(self._batch_cost.rows_within(JOIN_SECONDS) or JOIN_ROWS, JOIN_ROWS)
