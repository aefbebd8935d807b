"""One instance of a source: a thread that reads it, and one that runs what is fused with it and sends the rows on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from dask_elastic.executor.emitter import Emitter
from dask_elastic.meters import Rate
from dask_elastic.runtime.credit import Aborted
from dask_elastic.runtime.handoff import JOINED_ROWS, Handoff
from dask_elastic.runtime.intake import Intake
from dask_elastic.topology.operators import SourceOperator
from dask_elastic.topology.pace import SLICE_SECONDS, Pace, cut
from dask_elastic.topology.source import SourceContext
from dask_elastic.vocab.batch import MAX_BATCH_ROWS
from dask_elastic.vocab.errors import ElasticError, SourceError
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.deployment import Deployment

LUMP_SECONDS = 0.02
"""An unpaced source sends no more at a time than is taken within so many seconds: a lump is waited for as one."""

LEAST_ROWS = 1_024
"""Batches up to this size are not cut, which would cost more than it helps."""

MAILBOX_BYTES = 32 * 2**20
"""What `job.send` may have put ahead of its source."""


class Mailbox:
    """Batches from `job.send` on their way to a source; bounded in bytes."""

    def __init__(self, limit: int = MAILBOX_BYTES):
        self.limit = limit
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, rows: pa.RecordBatch, timeout: float) -> bool:
        """Put a batch, waiting up to `timeout` seconds for room; returns whether it was taken.

        Raises
        ------
        SourceError
            If the source takes no more.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._bytes < self.limit, timeout):
                return False
            if self._closed:
                raise SourceError("the source has ended: it takes no more rows")
            self._batches.append(rows)
            self._bytes += rows.nbytes
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """End the source after what is in the mailbox."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abort(self) -> None:
        """Take no more: the job has ended."""
        self.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._closed)
                if not self._batches:
                    return
                rows = self._batches.popleft()
                self._bytes -= rows.nbytes
                self._changed.notify_all()
            yield rows


class SourceThread:
    """Reads one instance of a source, paces it, and sends it on.

    Parameters
    ----------
    deployment : Deployment
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
        deployment: Deployment,
        identity: ExecutorId,
        operator: SourceOperator,
        instances: int,
        emitter: Emitter,
    ):
        self.deployment = deployment
        self.identity = identity
        self.source = operator.source
        self.instances = instances
        self.emitter = emitter
        self.rows = 0
        self.mailbox: Mailbox | Intake = deployment.intake(identity, self.source) if self.source.epochs else Mailbox()
        self.clock = deployment.downstream.clock(identity, self.source, time.monotonic())
        self._stop = threading.Event()
        self._handoff = Handoff()

    def start(self) -> None:
        """Begin to read."""
        self.deployment.thread(f"{self.identity}-reader", self._run_reader)
        self.deployment.thread(str(self.identity), self._run)

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
            self.deployment.downstream.punctuate(clock.begin())
        self.deployment.deliver(self.identity, self.emitter.emit([rows], due))
        if clock is not None:
            self.deployment.downstream.punctuate(clock.sent(rows, time.monotonic()))

    def _run(self) -> None:
        rate = Rate(window=1.0)
        clock = self.clock
        pause = None if clock is None else clock.interval
        while (taken := self._handoff.take(min(most := self._rows_at_once(rate), JOINED_ROWS), pause)) is not None:
            rows, due = taken
            if rows is None:
                assert clock is not None
                self.deployment.downstream.punctuate(clock.quiet(time.monotonic()))
                continue
            for part in cut(rows, max(most, LEAST_ROWS)):
                self._send(part, due)
                rate.add(part.num_rows, time.monotonic())
        self.mailbox.close()
        if self.deployment.ended:
            raise Aborted
        if clock is not None:
            self.deployment.downstream.punctuate(clock.end())
        self.deployment.instance_ended(self.identity)

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
            pace.came(asked, time.time())
            yield rows
            asked = time.time()

    def _read(self) -> Iterator[pa.RecordBatch]:
        context = SourceContext(
            instance=self.identity.index,
            instances=self.instances,
            mailbox=iter(self.mailbox) if self.source.pushed else None,
            stopping=self._stop.is_set,
            queue=lambda name: self.deployment.runtime.read_queue(name, self._stop.is_set),
        )
        try:
            for rows, _ in self.source.read(context):
                yield rows
        except (ElasticError, Aborted, GeneratorExit):
            raise
        except Exception as error:
            name = self.identity.component
            raise SourceError(f"source {name!r} could not be read: {type(error).__name__}: {error}") from error
