"""Rows that a job's sinks on this node hold for the readers of its queues."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable

import pyarrow as pa

from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.protocol.queue_calls import OfferRows, OpenQueue
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.vocab.errors import SinkError

OFFER_SECONDS = 0.5

COPIED_BYTES = 64 << 10
"""A batch up to this size lies on the Dask queue itself, in the memory of the scheduler."""


class OutputBuffer:
    """Holds rows until a reader has taken them; a queue's limit bounds their number.

    Parameters
    ----------
    ask : Ask
        Calls the scheduler from a thread.
    generation_id : JobGeneration
        The job.
    address : str
        Address of this worker.
    ended : callable
        Returns True when the job has ended.
    """

    def __init__(self, ask: Ask, generation_id: JobGeneration, address: str, ended: Callable[[], bool]):
        self._ask = ask
        self._generation_id = generation_id
        self._address = address
        self._ended = ended
        # The queue and the rows of each item.
        self._held: dict[int, tuple[str, pa.Buffer]] = {}
        self._whole: dict[str, bool] = {}
        self._numbers = itertools.count()
        self._lock = threading.Condition()

    def open(self, queue: str, limit: int, by_get: bool = False) -> None:
        """Tell the scheduler that this job writes a queue.

        Parameters
        ----------
        queue : str
            Name of the queue.
        limit : int
            How many items may wait in it.
        by_get : bool
            Whether any client takes an item by getting it from the Dask queue: it then gets the rows themselves.

        Raises
        ------
        SinkError
            If another running job writes it.
        """
        with self._lock:
            self._whole[queue] = by_get
        self._ask(OpenQueue(*self._generation_id, queue, limit, by_get))

    def put(self, queue: str, limit: int, rows: pa.RecordBatch) -> None:
        """Hold rows and offer them to the queue; blocks while the queue is full.

        Raises
        ------
        Aborted
            If the job has ended meanwhile.
        """
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, rows.schema) as writer:
            writer.write_batch(rows)
        held = out.getvalue()
        with self._lock:
            item = next(self._numbers)
            self._held[item] = (queue, held)
            is_copied = held.size <= COPIED_BYTES or self._whole.get(queue, False)
        copy = held.to_pybytes() if is_copied else None
        place = (queue, limit, self._address, item)
        offer = OfferRows(*self._generation_id, *place, OFFER_SECONDS, rows.num_rows, held.size, copy)
        while not self._ended():
            if self._ask(offer):
                return
        raise Aborted

    def rows(self, item: int) -> pa.Buffer:
        """Return rows as an Arrow IPC stream.

        Raises
        ------
        SinkError
            If another reader has taken them.
        """
        with self._lock:
            if item not in self._held:
                raise SinkError(f"worker {self._address} no longer holds item {item}: another reader has taken it.")
            return self._held[item][1]

    def drain(self, queue: str) -> None:
        """Wait until the readers of the queue have taken all rows that were put.

        Raises
        ------
        Aborted
            If the job has ended meanwhile.
        """
        with self._lock:
            while any(name == queue for name, _ in self._held.values()):
                if self._ended():
                    raise Aborted
                self._lock.wait(OFFER_SECONDS)

    def drop(self, items: Iterable[int]) -> None:
        """Forget rows that a reader has taken."""
        with self._lock:
            for item in items:
                self._held.pop(item, None)
            self._lock.notify_all()
