"""Between the thread that reads a source and the one that sends its rows on: small batches join while they wait."""

from __future__ import annotations

import threading
from collections import deque

import pyarrow as pa

JOINED_ROWS = 16_384
"""Joining beyond this many rows costs more in copies than it saves in calls."""

WAITING_BYTES = 16 * 2**20
"""A reader may be this far ahead, and one batch more."""


class Handoff:
    """A bounded queue of batches with the time at which each was due; one reader, one taker."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[pa.RecordBatch, float]] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    def put(self, rows: pa.RecordBatch, due: float) -> bool:
        """Append a batch, waiting for room; returns whether anybody still takes."""
        nbytes = rows.nbytes
        with self._changed:
            while self._bytes >= WAITING_BYTES and not self._closed:
                self._changed.wait()
            self._waiting.append((rows, due))
            self._bytes += nbytes
            self._changed.notify_all()
            return not self._closed

    def close(self) -> None:
        """Let the taker end once nothing waits, and the reader at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self) -> tuple[pa.RecordBatch, float] | None:
        """Return the next batch, joined with what of its schema waits behind it; None at the end."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting:
                return None
            rows, due = self._waiting.popleft()
            parts = [rows]
            count = rows.num_rows
            while self._waiting and count + self._waiting[0][0].num_rows <= JOINED_ROWS:
                if not _may_join(rows, self._waiting[0][0]):
                    break
                parts.append(self._waiting.popleft()[0])
                count += parts[-1].num_rows
            self._bytes -= sum(part.nbytes for part in parts)
            self._changed.notify_all()
        return (rows if len(parts) == 1 else pa.concat_batches(parts)), due


def _may_join(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Tell whether two batches make one without a unified dictionary, which may be too large for its indices."""
    if not one.schema.equals(other.schema):
        return False
    return all(_same_dictionary(a, b) for a, b in zip(one.columns, other.columns, strict=True))


def _same_dictionary(one: pa.Array, other: pa.Array) -> bool:
    if isinstance(one, pa.DictionaryArray):
        return bool(one.dictionary.equals(other.dictionary))
    return bool(one.type.num_fields == 0)
