"""The queue between the thread that reads a source and the thread that sends its rows; waiting batches are joined."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

import pyarrow as pa

JOINED_ROWS = 32_768
"""Batches are joined up to this many rows; fewer calls and thread switches outweigh the copy by far."""

WAITING_BYTES = 16 * 2**20
"""Bytes that may wait, and one batch more."""


class ReadAhead:
    """A bounded queue of batches with the time at which each was due; one thread puts, one takes, one sends at a time.

    Parameters
    ----------
    until : callable
        Returns until when `take` may wait, by the monotonic clock; called again after each send in the reading thread.
    """

    def __init__(self, until: Callable[[], float] = lambda: math.inf) -> None:
        self._waiting: deque[tuple[pa.RecordBatch, float, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._sending = False
        self._taken = False
        self._poked = False
        self._rest = False
        self._until = until
        self._waits_until = math.inf
        # Taken for every batch: without the condition's methods, which are Python code.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def put(self, rows: pa.RecordBatch, due: float) -> bool:
        """Append a batch, waiting for room; returns whether the queue is still open."""
        nbytes = rows.nbytes
        with self._lock:
            while self._bytes >= WAITING_BYTES and not self._closed:
                self._changed.wait()
            self._waiting.append((rows, due, nbytes))
            self._bytes += nbytes
            self._changed.notify()
            return not self._closed

    def pass_through(self, rows: pa.RecordBatch, due: float, send: Callable[[pa.RecordBatch, float], None]) -> bool:
        """Send a batch in the reading thread if the queue is empty, which saves a wake-up; else append it.

        Parameters
        ----------
        rows : RecordBatch
            The batch.
        due : float
            When it was due.
        send : callable
            Sends a batch, as the taking thread does.

        Returns
        -------
        bool
            Whether the queue is still open.
        """
        if not self.begin():
            return self.put(rows, due)
        try:
            send(rows, due)
        finally:
            self.end()
        return not self._closed

    def begin(self) -> bool:
        """Let the calling thread send a batch itself if the queue is empty and idle; it then has to call `end`."""
        with self._lock:
            begins = not (self._sending or self._waiting or self._closed or self._poked)
            self._sending |= begins
            return begins

    def end(self, rest: bool = False) -> None:
        """Note that the thread that began to send is done.

        Parameters
        ----------
        rest : bool
            Whether the taking thread has to send the rest, before anything else: `take` returns None there.
        """
        with self._lock:
            self._sending = self._rest = rest
            if rest or self._closed or self._poked or self._until() < self._waits_until:
                self._changed.notify()

    def poke(self) -> None:
        """Have `take` return soon, with None in place of a batch if none waits."""
        with self._lock:
            self._poked = True
            self._changed.notify()

    def close(self) -> None:
        """Close the queue: `take` returns the waiting batches and then None, `put` returns False."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def take(self, most: int = JOINED_ROWS) -> tuple[pa.RecordBatch | None, float] | None:
        """Return the next batch, joined with the waiting ones of its schema behind it; None at the end.

        The batch of the call before counts as sent. When the call has waited as long as it may, was poked, or is to
        send a rest, None takes the place of the batch; until the next call, no other thread sends, as with a batch.

        Parameters
        ----------
        most : int
            Batches are joined up to so many rows.
        """
        with self._lock:
            if self._taken:
                self._taken = self._sending = False
            while not self._rest and (self._sending or not (self._waiting or self._closed)):
                idles = not self._sending and self._poked
                if not idles:
                    in_time = self._changed.wait(self._seconds_to_wait())
                    idles = not in_time and not (self._sending or self._waiting or self._closed)
                if idles:
                    self._poked, self._taken, self._sending = False, True, True
                    return None, 0.0
            self._poked = False
            if self._rest:
                self._rest, self._taken = False, True
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

    def _seconds_to_wait(self) -> float | None:
        """Note until when `take` waits, for the reading thread, and return the seconds; None if there is no limit."""
        self._waits_until = math.inf if self._sending else self._until()
        return None if self._waits_until == math.inf else max(0.0, self._waits_until - time.monotonic())
