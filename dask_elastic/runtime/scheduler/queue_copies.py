"""The Dask queue beside an output queue or a source for Spark: copies of what waits, for any Dask client."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import Callable
from typing import Any

from distributed.protocol.serialize import ToPickle

from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.transport.epoch_rows import EpochRows
from dask_elastic.vocab.epoch import EpochRecord


class QueueCopies:
    """What clients get with ``Queue(name).get()``: copies of the items that are not taken.

    Parameters
    ----------
    queue : asyncio.Queue
        The Dask queue on the scheduler; clients may already wait for its entries, or have put some.
    ledger : str
        Identifies the ledger of the items; copies of earlier ledgers are removed.
    got : callable or None
        Called with the number of each item whose copy a client gets.
    """

    def __init__(self, queue: asyncio.Queue[Any], ledger: str, got: Callable[[int], None] | None = None):
        self._queue = queue
        self._ledger = ledger
        self._got = got
        self._sorting = False
        self.drop(0)
        # asyncio calls this method of a queue for each entry that leaves it; an earlier ledger may have replaced it.
        vars(queue).pop("_get", None)
        if got is not None:
            self._plain_get = queue._get
            vars(queue)["_get"] = self._counted_get

    def _counted_get(self) -> Any:
        record = self._plain_get()
        if self._got is not None and not self._sorting and record.get("ledger") == self._ledger:
            self._got(record["number"])
        return record

    @property
    def lacks_room(self) -> bool:
        """Whether entries of clients fill a queue whose copies must not be left out."""
        return self._got is not None and self._queue.full()

    def offer(self, number: int, copy: object) -> bool:
        """Add the copy of an item: the bytes of a small one, or a handle; returns False if there is no room."""
        if self._queue.full():
            return False
        value = copy if isinstance(copy, bytes) else ToPickle(copy)
        self._queue.put_nowait({"type": "msgpack", "value": value, "ledger": self._ledger, "number": number})
        return True

    def drop(self, through: float) -> None:
        """Remove the copies of items up to a number, and those of other ledgers."""
        self._sorting = True
        try:
            records = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            for record in records:
                if "number" not in record or (record["ledger"] == self._ledger and record["number"] > through):
                    self._queue.put_nowait(record)
        finally:
            self._sorting = False


class EpochCopies:
    """What clients get with ``Queue(name).get()``; the ledger alone decides what the instance reads.

    Parameters
    ----------
    queue : asyncio.Queue
        The Dask queue on the scheduler.
    ledger : EpochLedger
        The committed epochs.
    job, source, run : str
        The job, the source, and the run of the job.
    instance : int
        The instance.
    """

    def __init__(self, queue: asyncio.Queue[Any], ledger: EpochLedger, job: str, source: str, run: str, instance: int):
        self._copies = QueueCopies(queue, uuid.uuid4().hex)
        self._ledger = ledger
        self._place = (job, source, instance, run)
        self._instance = instance
        self._offered = 0
        self._small: dict[int, bytes] = {}
        self._added = asyncio.Event()

    def add(self, record: EpochRecord, small: bytes | None) -> None:
        """Add a committed epoch, with its rows if they are few, and wake the instance."""
        if not record.of_instance(self._instance):
            return
        if small is not None:
            self._small[record.number] = small
        self._fill()
        self.wake()

    def wake(self) -> None:
        """Wake the instance."""
        self._added.set()
        self._added = asyncio.Event()

    async def changed(self, seconds: float) -> None:
        """Return when an epoch is added, or when so many seconds are over."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._added.wait(), seconds)

    def taken(self, through: int) -> None:
        """Remove the epochs up to a number, which the instance has read."""
        self._copies.drop(through)
        self._offered = max(self._offered, through)
        self._small = {number: rows for number, rows in self._small.items() if number > through}
        self._fill()

    def clear(self) -> None:
        """Remove all epochs, because the job is forgotten."""
        self._copies.drop(math.inf)

    def rewound(self, through: int) -> None:
        """Begin again behind a number, from which an instance reads in a new generation of the job."""
        self._copies.drop(math.inf)
        self._small.clear()
        self._offered = through
        self._fill()

    def _fill(self) -> None:
        """Offer epochs that wait, while the queue has room."""
        for record in self._ledger.pending(self._instance, self._offered):
            if not self._copies.offer(record.number, self._small.get(record.number) or self._handle(record)):
                return
            self._small.pop(record.number, None)
            self._offered = record.number

    def _handle(self, record: EpochRecord) -> EpochRows:
        parts = record.of_instance(self._instance)
        return EpochRows(*self._place, record.number, record.query, record.epoch, parts)
