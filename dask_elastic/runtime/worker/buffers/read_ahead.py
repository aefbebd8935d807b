"""Between the thread that reads a source and the one that sends its rows on: small batches join while they wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import pyarrow as pa

JOINED_ROWS = 32_768
"""Batches are joined up to this many rows: what it saves in calls, and in threads that wait for one another, by far
outweighs the copy."""

WAITING_BYTES = 16 * 2**20
"""A reader may be this far ahead, and one batch more."""


class ReadAhead:
    """A bounded queue of batches with the time at which each was due; one reader, one taker."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[pa.RecordBatch, float, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._sending = False
        self._taken = False
        self._changed = threading.Condition(threading.Lock())

    def put(self, rows: pa.RecordBatch, due: float) -> bool:
        """Append a batch, waiting for room; returns whether anybody still takes."""
        nbytes = rows.nbytes
        with self._changed:
            while self._bytes >= WAITING_BYTES and not self._closed:
                self._changed.wait()
            self._waiting.append((rows, due, nbytes))
            self._bytes += nbytes
            self._changed.notify()
            return not self._closed

    def pass_through(self, rows: pa.RecordBatch, due: float, send: Callable[[pa.RecordBatch, float], None]) -> bool:
        """Have the reader itself send a batch if nothing is before it, which saves a wake-up; else append it.

        Parameters
        ----------
        rows : RecordBatch
            The batch.
        due : float
            When it was due.
        send : callable
            What the taker does with a batch.

        Returns
        -------
        bool
            Whether anybody still takes.
        """
        with self._changed:
            mine = not (self._sending or self._waiting or self._closed)
            self._sending |= mine
        if not mine:
            return self.put(rows, due)
        try:
            send(rows, due)
        finally:
            with self._changed:
                self._sending = False
                if self._closed:
                    self._changed.notify()
        return not self._closed

    def close(self) -> None:
        """Let the taker end once nothing waits, and the reader at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, most: int = JOINED_ROWS, timeout: float | None = None) -> tuple[pa.RecordBatch | None, float] | None:
        """Return the next batch, joined with what of its schema waits behind it; None at the end.

        The batch before counts as sent.

        Parameters
        ----------
        most : int
            Batches are joined up to so many rows.
        timeout : float, optional
            Seconds to wait at most, give or take what the reader is sending. In place of a batch comes None then; the
            reader sends nothing itself before the next call, as with a batch.
        """
        with self._changed:
            if self._taken:
                self._taken = self._sending = False
            while self._sending or not (self._waiting or self._closed):
                if not self._changed.wait(timeout) and not (self._sending or self._waiting or self._closed):
                    self._taken = self._sending = True
                    return None, 0.0
            if not self._waiting:
                return None
            self._taken = self._sending = True
            rows, due, nbytes = self._waiting.popleft()
            parts = [rows]
            count = rows.num_rows
            while self._waiting and count + self._waiting[0][0].num_rows <= most:
                if not self._waiting[0][0].schema.equals(rows.schema):
                    break
                part, _, its_bytes = self._waiting.popleft()
                parts.append(part)
                count += part.num_rows
                nbytes += its_bytes
            self._bytes -= nbytes
            self._changed.notify()
        return (rows if len(parts) == 1 else pa.concat_batches(parts)), due
