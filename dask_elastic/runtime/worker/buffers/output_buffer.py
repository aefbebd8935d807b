"""What a job's sinks on this node hold for those who read its queues."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.vocab.errors import SinkError

OFFER_SECONDS = 0.5


class OutputBuffer:
    """Holds rows until they were read; a queue's limit bounds how many.

    Parameters
    ----------
    ask : callable
        Asks the scheduler from a thread: `ask("offer_rows", queue=..., ...)`.
    address : str
        Of this worker.
    ended : callable
        True once the job has ended.
    """

    def __init__(self, ask: Callable[..., Any], address: str, ended: Callable[[], bool]):
        self._ask = ask
        self._address = address
        self._ended = ended
        self._held: dict[int, pa.Buffer] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def open(self, queue: str, limit: int) -> None:
        """Say that this job writes a queue.

        Raises
        ------
        SinkError
            If another one does.
        """
        self._ask("open_queue", queue=queue, limit=limit)

    def put(self, queue: str, limit: int, rows: pa.RecordBatch) -> None:
        """Hold rows and offer them; blocks while the queue is full.

        Raises
        ------
        Aborted
            If the job has ended meanwhile.
        """
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, rows.schema) as writer:
            writer.write_batch(rows)
        with self._lock:
            item = next(self._numbers)
            self._held[item] = out.getvalue()
        offer = {"queue": queue, "limit": limit, "address": self._address, "item": item, "wait": OFFER_SECONDS}
        while not self._ended():
            if self._ask("offer_rows", **offer):
                return
        raise Aborted

    def rows(self, item: int) -> pa.Buffer:
        """Return rows as an Arrow IPC stream.

        Raises
        ------
        SinkError
            If they were dropped.
        """
        with self._lock:
            if item not in self._held:
                raise SinkError(f"worker {self._address} does not hold item {item} any more: somebody else took it.")
            return self._held[item]

    def drop(self, items: Iterable[int]) -> None:
        """Forget rows that were read."""
        with self._lock:
            for item in items:
                self._held.pop(item, None)
