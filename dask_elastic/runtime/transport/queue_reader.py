"""Reads the batches of an output queue, from a client or from a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.queue_calls import HeldRows, NextRows, QueueItem, QueueItems, TakeRows
from dask_elastic.topology.source import never_stopping
from dask_elastic.vocab.errors import HandoffError, NodeLost, SinkError, SourceError

WAIT_SECONDS = 1.0
RETRY_SECONDS = 0.2

LOST_SECONDS = 60.0
"""Seconds within which a writer must restart whose worker cannot be reached."""

Fetch = Callable[[str, HeldRows], Payload]
"""Gets the rows of an item from the worker at an address."""


class QueueReader:
    """Reads one output queue.

    Parameters
    ----------
    queue : str
        Its name.
    ask : Ask
        Calls the scheduler.
    fetch : callable
        Fetches an item from the worker that holds it.
    stopping : callable
        Returns True when the reader is to stop.
    """

    def __init__(self, queue: str, ask: Ask, fetch: Fetch, stopping: Callable[[], bool] = never_stopping):
        self._queue = queue
        self._ask = ask
        self._fetch = fetch
        self.stopping = stopping

    def pages(self) -> Iterator[QueueItems]:
        """Yield the items that wait, as soon as there are some; the caller takes them before it continues.

        Yields
        ------
        QueueItems
            At least one item; the items of a writer that has restarted are counted anew.
        """
        ledger, after = "", 0
        while not self.stopping():
            found = self._ask(NextRows(self._queue, ledger, after, WAIT_SECONDS))
            if found.items:
                yield found
                ledger, after = found.ledger, found.items[-1].number
            elif found.ended:
                return
            elif found.ledger and found.ledger != ledger:
                # The next question is about the end of this one, also if its job is forgotten by then.
                ledger, after = found.ledger, 0

    def fetch(self, found: QueueItems, item: QueueItem) -> pa.RecordBatch | None:
        """Return the rows of an item; None if its writer has restarted, which then writes these rows again.

        Raises
        ------
        SourceError
            If the worker that holds them is lost, and the writer does not restart.
        """
        deadline = time.monotonic() + LOST_SECONDS
        while not self.stopping():
            try:
                rows = self._fetch(item.address, HeldRows(found.job, found.generation, item.item))
            except (OSError, NodeLost, HandoffError, SinkError) as error:
                if self._ask(NextRows(self._queue, found.ledger, item.number - 1, 0.0)).ledger != found.ledger:
                    return None
                if time.monotonic() > deadline:
                    raise SourceError(
                        f"queue {self._queue!r}: the rows of item {item.number} are lost with worker {item.address}, "
                        f"which held them for job {found.job!r}: {error}. Submit that job again."
                    ) from error
                time.sleep(RETRY_SECONDS)
                continue
            with pa.ipc.open_stream(pa.py_buffer(rows)) as reader:
                return reader.read_next_batch()
        return None

    def take(self, found: QueueItems, number: int) -> None:
        """Acknowledge the items up to a number."""
        self._ask(TakeRows(self._queue, found.ledger, number))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the queue; a batch is acknowledged when the next one is requested.

        Yields
        ------
        RecordBatch
            In the order of the queue.
        """
        for found in self.pages():
            for item in found.items:
                if self.stopping():
                    return
                rows = self.fetch(found, item)
                if rows is None:
                    break
                yield rows
                self.take(found, item.number)
