"""The Dask queue beside an output queue: copies of its items, for any Dask client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from distributed.protocol.serialize import ToPickle

from dask_elastic.runtime.protocol.queue_calls import OfferRows, QueueItem
from dask_elastic.runtime.transport.queue_rows import QueueRows


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

    def offer(self, item: QueueItem, call: OfferRows) -> None:
        """Add the copy of an item: a small batch as Arrow IPC, a large one as a handle."""
        value: Any = call.rows
        if call.rows is None:
            place = (call.job, call.generation, item.address, item.item)
            value = ToPickle(QueueRows(call.queue, item.number, call.count, call.nbytes, *place))
        if not self._queue.full():
            record = {"type": "msgpack", "value": value, "ledger": self._ledger, "number": item.number}
            self._queue.put_nowait(record)

    def drop(self, through: int) -> None:
        """Remove the copies of items up to a number, and those of other ledgers."""
        self._sorting = True
        try:
            records = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            for record in records:
                if "number" not in record or (record["ledger"] == self._ledger and record["number"] > through):
                    self._queue.put_nowait(record)
        finally:
            self._sorting = False
