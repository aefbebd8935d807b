"""Rows from `Job.send` on their way to a source."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.vocab.errors import SourceError

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
