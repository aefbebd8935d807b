"""The queue between `Job.send` and a pushed source."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.vocab.errors import SourceError

MAILBOX_BYTES = 32 * 2**20
"""Bytes that may wait in a mailbox."""


class Mailbox:
    """Batches from `Job.send` that the source has not read yet; bounded in bytes."""

    def __init__(self, limit: int = MAILBOX_BYTES):
        self.limit = limit
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, rows: pa.RecordBatch, timeout: float) -> bool:
        """Add a batch, waiting up to `timeout` seconds for room; returns whether there was room.

        Raises
        ------
        SourceError
            If the source has ended.
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
        """End the source after the batches in the mailbox."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abort(self) -> None:
        """Close the mailbox, because the job has ended."""
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
