"""Batches that were sent to a source and are not acknowledged: after a restart of the job they are sent again."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.runtime.protocol.tables import table_bytes
from dask_elastic.runtime.transport.wire import Buffers


class Kept(NamedTuple):
    """A batch that may have to be sent again.

    Parameters
    ----------
    sequence : int
        The number that the source recognises it by.
    schema : bytes or None
        Its schema as an Arrow IPC message; None if the body is a stream with its schema.
    body : list of buffers
        The rows.
    due : float or None
        When they were due.
    rows : int
        Their number.
    cost : int
        Bytes that they count against the window of a connection.
    """

    sequence: int
    schema: bytes | None
    body: Buffers
    due: float | None
    rows: int
    cost: int

    def stream(self) -> memoryview:
        """Return the rows as an Arrow IPC stream."""
        (body,) = self.body
        if self.schema is None:
            return memoryview(body)
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        return stream_of(pa.ipc.read_record_batch(pa.py_buffer(body), schema))


def stream_of(rows: pa.RecordBatch) -> memoryview:
    """Return rows as an Arrow IPC stream."""
    return memoryview(table_bytes(pa.Table.from_batches([rows])))


class Unacknowledged:
    """The batches of one sender that its source has not acknowledged; any thread may call the methods.

    Attributes
    ----------
    sender : str
        Identifies the sender; with the sequence numbers, the source recognises batches that come again.
    acknowledged : int
        All batches up to this number are durable.
    """

    def __init__(self) -> None:
        self.sender = uuid.uuid4().hex
        self.acknowledged = 0
        self._kept: deque[Kept] = deque()
        self._lock = threading.Lock()

    @property
    def newest(self) -> int:
        """The number of the newest batch that was sent."""
        with self._lock:
            return self._newest()

    def _newest(self) -> int:
        # Not counted separately: an interrupt between a count and the batch would leave a number that is never sent.
        return self._kept[-1].sequence if self._kept else self.acknowledged

    def add(self, schema: bytes | None, body: Buffers, due: float | None, rows: int, cost: int) -> Kept:
        """Assign the next number to a batch, and keep it until it is acknowledged."""
        with self._lock:
            kept = Kept(self._newest() + 1, schema, body, due, rows, cost)
            self._kept.append(kept)
            return kept

    def acknowledge(self, through: int) -> None:
        """Drop the batches up to a number."""
        with self._lock:
            self.acknowledged = max(self.acknowledged, through)
            while self._kept and self._kept[0].sequence <= through:
                self._kept.popleft()

    def all(self) -> list[Kept]:
        """Return the batches that are not acknowledged, in order."""
        with self._lock:
            return list(self._kept)

    @property
    def rows(self) -> int:
        """Rows that are not acknowledged."""
        with self._lock:
            return sum(kept.rows for kept in self._kept)
