"""An output queue of another job as a source reads it whose rows are spooled."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.runtime.transport.queue_reader import QueueReader
from dask_elastic.runtime.worker.buffers.spool import Spool

DURABLE_SECONDS = 1.0


def spooled_rows(reader: QueueReader, spool: Spool) -> Iterator[pa.RecordBatch]:
    """Yield what the spool has of earlier generations, then the batches of the queue.

    A batch is yielded at once, and acknowledged when it is durable: a restart finds it in the spool or in the queue,
    and if it is in both, the spool recognises it by its number.

    Parameters
    ----------
    reader : QueueReader
        Reads the queue.
    spool : Spool
        Makes the batches durable; its `offset` is that of the batch yielded last.

    Yields
    ------
    RecordBatch
        In order.
    """
    for entry in spool.replayed():
        yield entry.rows
    if spool.ended:
        return
    for found in reader.pages():
        untaken = 0
        for item in found.items:
            rows = reader.fetch(found, item)
            if rows is None:
                break
            number = spool.admit(found.ledger, item.number, rows, None, time.time())
            if number is not None:
                spool.offset = number
                yield rows
            untaken = item.number
            if spool.durable == spool.newest:
                reader.take(found, item.number)
                untaken = 0
        while untaken and not reader.stopping():
            if spool.stopped:
                return
            if spool.wait_durable(DURABLE_SECONDS):
                reader.take(found, untaken)
                untaken = 0
    if not reader.stopping():
        spool.admit("", 0, None, None, time.time())
