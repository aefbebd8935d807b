"""One instance of a source: a thread that reads it, and one that runs what is fused with it and sends the rows on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from dask_elastic.executor.emitter import Emitter
from dask_elastic.meters import Rate
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.buffers.read_ahead import JOINED_ROWS, ReadAhead
from dask_elastic.topology.operators import SourceOperator
from dask_elastic.topology.pace import SLICE_SECONDS, Pace, cut
from dask_elastic.topology.source import SourceContext
from dask_elastic.vocab.batch import MAX_BATCH_ROWS
from dask_elastic.vocab.errors import ElasticError, SourceError
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.job_part import JobPart

LUMP_SECONDS = 0.02
"""An unpaced source sends no more at a time than is taken within so many seconds: a lump is waited for as one."""

LEAST_ROWS = 1_024
"""Batches up to this size are not cut, which would cost more than it helps."""


class SourceThread:
    """Reads one instance of a source, paces it, and sends it on.

    Parameters
    ----------
    job_part : JobPart
        The job's part on this node.
    identity : ExecutorId
        Which instance of which source.
    operator : SourceOperator
        The source.
    instances : int
        How many instances share it.
    emitter : Emitter
        Its way out.
    """

    def __init__(
        self,
        job_part: JobPart,
        identity: ExecutorId,
        operator: SourceOperator,
        instances: int,
        emitter: Emitter,
    ):
        self.job_part = job_part
        self.identity = identity
        self.source = operator.source
        self.instances = instances
        self.emitter = emitter
        self.rows = 0
        self.mailbox: Mailbox | EpochBuffer = (
            job_part.epoch_buffer(identity, self.source) if self.source.epochs else Mailbox()
        )
        self.clock = job_part.downstream.clock(identity, self.source, time.monotonic())
        self._stop = threading.Event()
        self._handoff = ReadAhead()

    def start(self) -> None:
        """Begin to read."""
        self.job_part.thread(f"{self.identity}-reader", self._run_reader)
        self.job_part.thread(str(self.identity), self._run)

    def stop(self) -> None:
        """Read no further; what was read, or taken from `job.send`, is processed."""
        if not self.source.pushed:
            # A reader that waits in user code for rows to come does not hold the end up.
            self._stop.set()
            self._handoff.close()
        self.mailbox.close()

    def abort(self) -> None:
        """Make the threads see that the job has ended."""
        self._stop.set()
        self._handoff.close()
        self.mailbox.abort()

    def _run_reader(self) -> None:
        # Who waits for rows to be due does not gain by reading ahead, unless it is late: then small batches join.
        waits = self.source.pushed or self.source.rate is not None
        for rows, due in self._paced():
            if waits and time.time() - due < SLICE_SECONDS:
                wanted = self._handoff.pass_through(rows, due, self._send)
            else:
                wanted = self._handoff.put(rows, due)
            if not wanted:
                return
        self._handoff.close()

    def _send(self, rows: pa.RecordBatch, due: float) -> None:
        self.rows += rows.num_rows
        if (clock := self.clock) is not None:
            self.job_part.downstream.emit_watermark(clock.begin())
        self.job_part.deliver(self.identity, self.emitter.emit([rows], due))
        if clock is not None:
            self.job_part.downstream.emit_watermark(clock.sent(rows, time.monotonic()))

    def _run(self) -> None:
        rate = Rate(window=1.0)
        clock = self.clock
        pause = None if clock is None else clock.interval
        while (taken := self._handoff.take(min(most := self._rows_at_once(rate), JOINED_ROWS), pause)) is not None:
            rows, due = taken
            if rows is None:
                assert clock is not None
                self.job_part.downstream.emit_watermark(clock.quiet(time.monotonic()))
                continue
            for part in cut(rows, max(most, LEAST_ROWS)):
                self._send(part, due)
                rate.add(part.num_rows, time.monotonic())
        self.mailbox.close()
        if self.job_part.ended:
            raise Aborted
        if clock is not None:
            self.job_part.downstream.emit_watermark(clock.end())
        self.job_part.instance_ended(self.identity)

    @staticmethod
    def _rows_at_once(rate: Rate) -> int:
        """Return how many rows are a moment's work for those who take them."""
        return int(min(max(rate.per_second(time.monotonic()) * LUMP_SECONDS, 1), MAX_BATCH_ROWS))

    def _paced(self) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Batches, each with the time at which it was due; waits until it is."""
        rate = self.source.rate
        if rate is None:
            for rows in self._read():
                yield rows, time.time()
            return
        pace = Pace(rate / self.instances, time.time())
        for rows in self._as_it_comes(pace) if self.source.pushed else self._read():
            for part, due in pace.slice(rows):
                assert due is not None
                if self._stop.wait(max(0.0, due - time.time())):
                    return
                yield part, due

    def _as_it_comes(self, pace: Pace) -> Iterator[pa.RecordBatch]:
        """Batches that somebody pushes: while there are none, nothing is due."""
        pushed = self._read()
        asked = time.time()
        for rows in pushed:
            pace.note_arrival(asked, time.time())
            yield rows
            asked = time.time()

    def _read(self) -> Iterator[pa.RecordBatch]:
        context = SourceContext(
            instance=self.identity.index,
            instances=self.instances,
            mailbox=iter(self.mailbox) if self.source.pushed else None,
            stopping=self._stop.is_set,
            queue=lambda name: self.job_part.runtime.read_queue(name, self._stop.is_set),
        )
        try:
            for rows, _ in self.source.read(context):
                yield rows
        except (ElasticError, Aborted, GeneratorExit):
            raise
        except Exception as error:
            name = self.identity.component
            raise SourceError(f"source {name!r} could not be read: {type(error).__name__}: {error}") from error
