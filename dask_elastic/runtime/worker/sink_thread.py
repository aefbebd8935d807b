"""One instance of a sink on a thread of its own: it writes the outputs of the instances on its node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from dask_elastic.executor.control_records.alignment import Alignment
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.error_policy import with_trace
from dask_elastic.executor.task_queue import JOIN_ROWS
from dask_elastic.meters import BatchCost, BriefWork, CounterRate, InlineCost
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.buffers.output_buffer import OutputBuffer
from dask_elastic.runtime.worker.buffers.turn_queue import TurnQueue
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.topology.schema import stack_rows
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.topology.transactions import Transactions
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ElasticError, SinkError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.checkpoint_keeper import CheckpointKeeper, Recovered

JOIN_SECONDS = 0.02
"""Waiting batches are joined as long as writing takes no longer than this beyond its fixed cost."""

INLINE_SECONDS = 0.001
"""A write that is expected to take no longer is made by the thread that brings the batch."""

WAITING_SECONDS = 0.0002
"""The same for writes that mostly wait for something."""


class CheckpointEvent(Enum):
    """What becomes of a checkpoint."""

    BEGUN = "begun"
    ABANDONED = "abandoned"
    COMPLETE = "complete"


class Waiting(NamedTuple):
    """What waits for a sink: a batch and its credit, a control record, or the end of an upstream instance."""

    origin: ExecutorId
    item: Batch | Watermark | Barrier | None = None
    nbytes: int = 0


class Told(NamedTuple):
    """What the coordinator tells a sink about a checkpoint."""

    event: CheckpointEvent
    checkpoint: int


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
    keeper : CheckpointKeeper or None
        Acknowledges checkpoints; None for a job without them.
    recovered : Recovered or None
        What the checkpoint from which the job was restarted holds for this instance.
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
        keeper: CheckpointKeeper | None = None,
        recovered: Recovered | None = None,
    ):
        self.identity = identity
        self.sink = sink
        self.threads = threads
        self.exchange = exchange
        node = instance = identity.index
        self._context = SinkContext(
            spec.job, identity.component, node, instance, output_buffer, spec.run, keeper is not None, spec.generation,
            recovered is not None, None if keeper is None else keeper.staging,
        )  # fmt: skip
        self._finished = finished
        self._keeper = keeper
        self._recovered = recovered
        self._alignment: Alignment[Waiting] = Alignment(inputs.open)
        self._transactions = Transactions()
        self._ended = False
        self.rows = 0
        self.inputs = inputs
        self._waiting: TurnQueue[Waiting | Told | None] = TurnQueue()
        self._cost = InlineCost()
        self._batch_cost = BatchCost()
        self._brief_work = BriefWork()
        self._recent, self._recent_busy = CounterRate(), CounterRate()
        self._busy = 0.0
        self._writer: SinkWriter | None = None
        # Whether a write in another thread has failed.
        self._failed = False

    def start(self) -> None:
        """Start writing."""
        self.threads.start(str(self.identity), self._run)

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int, may_wait: bool = True) -> None:
        """Take a batch; a caller that may wait writes it itself, if the sink is idle and such writes are short."""
        seconds = INLINE_SECONDS if self._brief_work.is_brief else WAITING_SECONDS
        is_short = may_wait and self._cost.allows(batch.rows.num_rows, seconds)
        waits = not is_short or self._must_wait or not self.threads.lease.is_open
        if waits or not self._waiting.begin_turn():
            self._waiting.put(Waiting(origin, batch, nbytes))
            return
        # Only who has the turn changes this: a barrier of the same input may have been handled since.
        if self._must_wait:
            self._waiting.put(Waiting(origin, batch, nbytes))
            self._waiting.end_turn()
            return
        assert self._writer is not None, "the thread opens the writer before it waits for batches"
        failed = True
        try:
            self._write(self._writer, [Waiting(origin, batch, nbytes)])
            failed = False
        except (ElasticError, Aborted):
            raise
        except Exception as error:
            raise self._explanation(error) from error
        finally:
            self._failed |= failed
            self._waiting.end_turn()

    @property
    def _must_wait(self) -> bool:
        """Whether a batch that comes now is not written before the sink's own thread has looked at it."""
        return self._failed or self._alignment.is_active

    def receive_watermark(self, watermark: Watermark, version: int = 0) -> None:
        """Take a watermark of an upstream instance."""
        self._waiting.put(Waiting(watermark.origin, watermark))

    def receive_barrier(self, barrier: Barrier) -> None:
        """Take a barrier of an upstream instance."""
        self._waiting.put(Waiting(barrier.origin, barrier))

    def tell(self, event: CheckpointEvent, checkpoint: int) -> None:
        """Take what the coordinator says about a checkpoint."""
        self._waiting.put(Told(event, checkpoint))
        if self._ended:
            self._acknowledge_empty()

    def input_ended(self, origin: ExecutorId, version: int = 0) -> None:
        """Take the end of an upstream instance."""
        self._waiting.put(Waiting(origin))

    def abort(self) -> None:
        """Wake the thread, so that it sees that the job has ended."""
        self._waiting.put(None)

    def collected(self) -> pa.Table | None:
        """Return the rows that the writer keeps for the client."""
        try:
            batches = [] if self._writer is None else self._writer.collected()
        except SinkError as error:
            raise SinkError(f"sink {self.identity.component!r}: {error}") from error
        tables = [pa.Table.from_batches([rows]) for rows in batches]
        return stack_rows(tables, f"the rows of sink {self.identity.component!r}") if tables else None

    def rows_per_second(self) -> float:
        """Return the recent rate of writing; called for each report of the worker."""
        return self._recent.per_second(self.rows, time.monotonic())

    def busy(self) -> float:
        """Return the recent share of time in which the sink wrote; called for each report of the worker."""
        return min(1.0, self._recent_busy.per_second(self._busy, time.monotonic()))

    def _run(self) -> None:
        complete = False
        with self._explained():
            with self._permitted():
                self._writer = self.sink.open(self._context)
            if self._keeper is not None and self._recovered is None:
                # Before the first row: what is there from then on may be of this job.
                self._keeper.opened(self.identity)
            try:
                if self._recovered is not None:
                    with self._permitted():
                        self._writer.recover(self._recovered.prepared, self._recovered.checkpoint)
                complete = self._write_all(self._writer)
            finally:
                if not complete:
                    self._writer.abort()
        if complete:
            self._ended = True
            self._acknowledge_empty()
            self._finished(self.identity)

    def _acknowledge_empty(self) -> None:
        """Acknowledge the checkpoints that have begun since the last rows were committed: they have none of this sink.

        Whichever thread comes last finds them: the sink's own at its end, or the one that brings them later.
        """
        for told in self._waiting.take_while(lambda waiting: True):
            if not isinstance(told, Told) or self._keeper is None:
                continue
            if told.event is CheckpointEvent.BEGUN:
                self._keeper.prepared(told.checkpoint, self.identity, ())
            elif told.event is CheckpointEvent.COMPLETE:
                self._keeper.committed(told.checkpoint, self.identity)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (ElasticError, Aborted):
            raise
        except Exception as error:
            raise self._explanation(error) from error

    def _explanation(self, error: Exception) -> SinkError:
        return SinkError(with_trace(f"sink {self.identity.component!r} failed", error))

    def _write_all(self, writer: SinkWriter) -> bool:
        self._request_last()
        while self._awaits_more:
            taken = self._waiting.take()
            if taken is None or self.threads.ended or self._failed:
                return False
            if isinstance(taken, Told):
                self._hear(writer, taken)
            elif self._alignment.admit(taken.origin, taken):
                self._take(writer, taken)
            for _, held in self._alignment.released():
                self._take(writer, held)
        with self._permitted():
            writer.close()
        return True

    @property
    def _awaits_more(self) -> bool:
        """Whether inputs have not ended, or the last rows are not committed."""
        if self.inputs.open or self._keeper is None:
            return bool(self.inputs.open)
        return not self._transactions.is_finished

    def _take(self, writer: SinkWriter, taken: Waiting) -> None:
        origin, item, _ = taken
        match item:
            case None:
                self.inputs.end(origin)
                self._prepare_if(writer, self._alignment.ended(origin))
                self._request_last()
            case Watermark():
                self.inputs.advance(item)
            case Barrier():
                self._alignment.begin(item.checkpoint)
                self._prepare_if(writer, self._alignment.barrier(item))
            case Batch():
                self._write(writer, [taken, *self._more(item.rows)])

    def _request_last(self) -> None:
        """Ask for a checkpoint once all inputs have ended: the last rows are committed with it."""
        if self._keeper is not None and not self.inputs.open:
            self._keeper.request()

    def _hear(self, writer: SinkWriter, told: Told) -> None:
        match told.event:
            case CheckpointEvent.BEGUN:
                self._alignment.begin(told.checkpoint)
                self._prepare_if(writer, self._alignment.completed())
            case CheckpointEvent.ABANDONED:
                self._alignment.passed(told.checkpoint)
                self._request_last()
            case CheckpointEvent.COMPLETE:
                for prepared in self._transactions.complete(told.checkpoint):
                    with self._permitted():
                        writer.commit(prepared)
                self._transactions.committed(told.checkpoint)
                if self._keeper is not None:
                    self._keeper.committed(told.checkpoint, self.identity)

    def _prepare_if(self, writer: SinkWriter, checkpoint: int | None) -> None:
        """Prepare what was written, if the barriers of a checkpoint are aligned."""
        if checkpoint is None or self._keeper is None:
            return
        with self._permitted():
            prepared = writer.prepare(checkpoint)
        self._transactions.add(checkpoint, prepared, last=not self.inputs.open)
        self._keeper.prepared(checkpoint, self.identity, self._transactions.handles)
        self._alignment.passed(checkpoint)

    def _more(self, rows: pa.RecordBatch) -> list[Waiting]:
        """Return the batches behind one that are joined with it."""
        joined, most = rows.num_rows, self._limit()

        def fits(waiting: Waiting | Told | None) -> bool:
            nonlocal joined
            if not isinstance(waiting, Waiting) or not isinstance(waiting.item, Batch):
                return False
            joined += waiting.item.rows.num_rows
            return joined <= most and bool(waiting.item.rows.schema.equals(rows.schema))

        if self._alignment.is_active:
            return []
        return [waiting for waiting in self._waiting.take_while(fits) if isinstance(waiting, Waiting)]

    def _write(self, writer: SinkWriter, waiting: list[Waiting]) -> None:
        batches = [part.item.rows for part in waiting if isinstance(part.item, Batch)]
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        # Not while this thread has a turn, for which others wait.
        self.threads.lease.wait()
        _, busy = TURNS.run(self._brief_work, rows.num_rows, lambda: self._write_rows(writer, rows))
        self.rows += rows.num_rows
        self._busy += busy
        most = self._limit()
        self._cost.add(rows.num_rows, busy)
        self._batch_cost.add(rows.num_rows, busy)
        for part in waiting:
            self.exchange.release(part.origin, self.identity, part.nbytes, rows.num_rows < most)

    def _write_rows(self, writer: SinkWriter, rows: pa.RecordBatch) -> None:
        with self._watched():
            writer.write(rows)

    def _permitted(self) -> AbstractContextManager[None]:
        """Wait for the coordinator's lease, and note how long code of the sink runs."""
        self.threads.lease.wait()
        return self._watched()

    def _watched(self) -> AbstractContextManager[None]:
        """Note how long code of the sink runs."""
        return self.threads.user_calls.running(self.identity.component, "write")

    def _limit(self) -> int:
        """Return the most rows that are written at once."""
        return min(self._batch_cost.rows_within(JOIN_SECONDS) or JOIN_ROWS, JOIN_ROWS)
