"""The reading of one instance of a source: runs its code, and notes how far it is and how long each read takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.executor.error_policy import raise_source_error
from dask_elastic.meters import PromptReads
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.transport.queue_reader import QueueReader
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.buffers.spooled_queue import spooled_rows
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.sources.read_positions import ReadPositions, without_first
from dask_elastic.topology.source import Source, SourceContext
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from distributed import Client


class SourceReading:
    """Reads the batches of one instance of a source.

    Parameters
    ----------
    identity : ExecutorId
        Which instance of which source.
    source : Source
        The source.
    instances : int
        How many instances share it.
    start : SourcePosition
        Where to begin.
    mailbox : Mailbox or EpochBuffer
        Where rows wait that are pushed to the source.
    threads : JobThreads
        Keeps the calls of user code.
    positions : ReadPositions or None
        Takes what was read, in a job with checkpoints.
    stopping : callable
        Returns whether the source ends.
    queue_reader, client, agree : callable
        As of `SourceThread`.

    Attributes
    ----------
    reads : PromptReads
        Whether the source returns at once when it is read; that of pushed rows never counts as prompt.
    """

    def __init__(
        self,
        identity: ExecutorId,
        source: Source,
        instances: int,
        start: SourcePosition,
        mailbox: Mailbox | EpochBuffer,
        threads: JobThreads,
        positions: ReadPositions | None,
        stopping: Callable[[], bool],
        queue_reader: Callable[[str, Callable[[], bool]], QueueReader],
        client: Callable[[], Client],
        agree: Callable[[bytes], bytes] | None = None,
    ):
        self._identity = identity
        self._source = source
        self._instances = instances
        self._start = start
        self._mailbox = mailbox
        self._spool = mailbox.spool if isinstance(mailbox, Mailbox) else None
        self._threads = threads
        self._positions = positions
        self._stopping = stopping
        self._queue_reader = queue_reader
        self._client = client
        self._agree = agree if instances > 1 else None
        self.reads = PromptReads()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield what the source reads, from the start on."""
        mailbox, positions = self._mailbox, self._positions
        context = SourceContext(
            instance=self._identity.index,
            instances=self._instances,
            offset=self._start.offset,
            mailbox=iter(mailbox) if self._source.pushed and isinstance(mailbox, Mailbox) else None,
            stopping=self._stopping,
            queue=lambda name: self._threads.user_calls.awaited(self._queue(name)),
            client=self._client,
            position=None if (spool := self._spool) is None else lambda: spool.offset,
            epochs=mailbox.read if isinstance(mailbox, EpochBuffer) else None,
            agreed=self._agree,
        )
        with self.explained():
            read = self._watched(iter(self._source.read(context)))
            for rows, offset in without_first(read, self._start.skip):
                if positions is not None:
                    positions.read(rows.num_rows, offset)
                yield rows

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Name the source in errors of its code."""
        try:
            yield
        except (Aborted, GeneratorExit):
            raise
        except Exception as error:
            raise_source_error(self._identity.component, error)

    def _queue(self, name: str) -> Iterator[pa.RecordBatch]:
        reader = self._queue_reader(name, self._stopping)
        return reader.batches() if self._spool is None else spooled_rows(reader, self._spool)

    def _watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield what a source reads, and note how long each read takes, unless it waits for rows of ours."""
        if self._source.pushed:
            yield from batches
            return
        calls, operator, clock = self._threads.user_calls, self._identity.component, time.perf_counter
        while True:
            began = clock()
            with calls.running(operator, "read"):
                item = next(batches, None)
            if item is None:
                return
            self.reads.add(clock() - began)
            yield item
