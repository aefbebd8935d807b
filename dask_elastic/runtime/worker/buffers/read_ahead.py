"""The queue between the thread that reads a source and the thread that sends its rows; waiting batches are joined."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa

JOINED_ROWS = 32_768
"""Batches are joined up to this many rows; fewer calls and thread switches outweigh the copy by far."""

WAITING_BYTES = 16 * 2**20
"""Bytes that may wait, and one batch more."""

BATCH_BYTES = 512
COLUMN_BYTES = 256
"""What a waiting batch and each of its columns take besides the rows: much more than these, if they are few."""

HELD_SECONDS = 0.02
"""Batches that were held for once or twice as long are sent by the taking thread: the reading thread is blocked."""

_FEW_BYTES = 64 * 2**10
"""Buffers up to this size count as a whole: finding the bytes of a slice takes as long as sending one row."""

_Waiting: TypeAlias = deque[tuple[pa.RecordBatch, float, int]]


class ReadAhead:
    """A bounded queue of batches with the time at which each was due; one thread puts, one takes, one sends at a time.

    Parameters
    ----------
    until : callable
        Returns until when `take` may wait, by the monotonic clock; called again after each send in the reading thread.
    """

    def __init__(self, until: Callable[[], float] = lambda: math.inf) -> None:
        self._waiting: _Waiting = deque()
        self._bytes = 0
        # Batches that have left; and how many had when the taking thread looked last, if it looks for held ones.
        self._left = 0
        self._seen: int | None = None
        self._held = False
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

    @property
    def holds(self) -> bool:
        """Whether batches wait that the reading thread is to send; see `hold`."""
        return self._held

    def put(self, rows: pa.RecordBatch, due: float) -> bool:
        """Append a batch, waiting for room; returns whether the queue is still open."""
        with self._lock:
            while self._bytes >= WAITING_BYTES and not self._closed:
                if self._held:
                    # The taking thread makes room.
                    self._held = False
                    self._changed.notify()
                self._changed.wait()
            nbytes = rows.nbytes + _own_bytes(rows)
            self._waiting.append((rows, due, nbytes))
            self._bytes += nbytes
            self._held = False
            self._changed.notify()
            return not self._closed

    def hold(self, rows: pa.RecordBatch, due: float) -> bool:
        """Append a batch that the reading thread sends, with those behind it, when it calls `pass_through` next.

        The taking thread is not woken. It sends the batch if the reading thread does not return within `HELD_SECONDS`,
        or if there is no room.

        Returns
        -------
        bool
            Whether the queue is still open.
        """
        nbytes = _bytes_at_most(rows) + _own_bytes(rows)
        with self._lock:
            if self._is_free() and self._bytes < WAITING_BYTES:
                self._waiting.append((rows, due, nbytes))
                self._bytes += nbytes
                self._held = True
                if self._seen is None:
                    self._changed.notify()
                return True
        return self.put(rows, due)

    def pass_through(self, rows: pa.RecordBatch, due: float, send: Callable[[pa.RecordBatch, float], None]) -> bool:
        """Send a batch, and what is held, in the reading thread, which saves a wake-up; append it if others wait.

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
        held: _Waiting = deque()
        with self._lock:
            if begins := self._is_free():
                self._sending, self._held = True, False
                if self._waiting:
                    self._left += len(self._waiting)
                    held, self._waiting, self._bytes = self._waiting, held, 0
        if not begins:
            return self.put(rows, due)
        try:
            if held:
                held.append((rows, due, 0))
                for joined, first_due in _all_joined(held):
                    send(joined, first_due)
            else:
                send(rows, due)
        finally:
            self.end()
        return not self._closed

    def begin(self) -> bool:
        """Let the calling thread send a batch itself if the queue is empty and idle; it then has to call `end`."""
        with self._lock:
            begins = self._is_free() and not self._waiting
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
            self._held = False
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
            while not self._rest and (self._sending or self._held or not (self._waiting or self._closed)):
                if self._waits():
                    self._poked, self._taken, self._sending = False, True, True
                    return None, 0.0
            self._poked = False
            if self._rest:
                self._rest, self._taken = False, True
                return None, 0.0
            if not self._waiting:
                return None
            self._taken = self._sending = True
            parts, due, nbytes = _next_joined(self._waiting, most)
            self._left += len(parts)
            self._bytes -= nbytes
            self._changed.notify()
        return (parts[0] if len(parts) == 1 else pa.concat_batches(parts)), due

    def _is_free(self) -> bool:
        """Return whether the taking thread has nothing to send, so that another one may."""
        return not (self._sending or self._closed or self._poked) and (self._held or not self._waiting)

    def _waits(self) -> bool:
        """Wait for a change; returns whether `take` was poked or has waited as long as it may."""
        if not self._sending and self._poked:
            return True
        if self._changed.wait(self._seconds_to_wait()):
            return False
        self._look()
        # Rows that are held are no silence of the source.
        is_silent = not (self._sending or self._waiting or self._closed)
        return is_silent and time.monotonic() >= self._waits_until

    def _seconds_to_wait(self) -> float | None:
        """Note until when `take` waits, for the reading thread, and return the seconds; None if there is no limit."""
        self._waits_until = math.inf if self._sending else self._until()
        if self._held and self._seen is None:
            self._seen = -1
        if self._waits_until == math.inf:
            return None if self._seen is None else HELD_SECONDS
        seconds = max(0.0, self._waits_until - time.monotonic())
        return seconds if self._seen is None else min(seconds, HELD_SECONDS)

    def _look(self) -> None:
        """Release held batches if nothing has left since the last look; look no more if there were none."""
        if self._seen is None:
            return
        if self._left != self._seen:
            self._seen = self._left
        elif self._waiting:
            self._held = False
        else:
            self._seen = None


def _bytes_at_most(rows: pa.RecordBatch) -> int:
    """Return the bytes of a batch, or a few more."""
    buffers: int = rows.get_total_buffer_size()
    return buffers if buffers <= _FEW_BYTES else rows.nbytes


def _own_bytes(rows: pa.RecordBatch) -> int:
    """Return about how many bytes a batch takes besides its rows."""
    return BATCH_BYTES + COLUMN_BYTES * int(rows.num_columns)


def _next_joined(waiting: _Waiting, most: int) -> tuple[list[pa.RecordBatch], float, int]:
    """Remove the batches that are sent together; returns them, when the first one was due, and their bytes."""
    rows, due, nbytes = waiting.popleft()
    parts, count, schema = [rows], rows.num_rows, rows.schema
    while waiting and count + waiting[0][0].num_rows <= most and waiting[0][0].schema.equals(schema):
        part, _, its_bytes = waiting.popleft()
        parts.append(part)
        count += part.num_rows
        nbytes += its_bytes
    return parts, due, nbytes


def _all_joined(waiting: _Waiting) -> Iterator[tuple[pa.RecordBatch, float]]:
    while waiting:
        parts, due, _ = _next_joined(waiting, JOINED_ROWS)
        yield (parts[0] if len(parts) == 1 else pa.concat_batches(parts)), due
