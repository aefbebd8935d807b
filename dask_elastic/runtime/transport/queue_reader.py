"""Reads the batches of an output queue, from a client or from a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.queue_calls import HeldRows, NextRows, TakeRows
from dask_elastic.topology.source import never_stopping

WAIT_SECONDS = 1.0

Fetch = Callable[[str, HeldRows], Payload]
"""Gets the rows of an item from the worker at an address."""


def batches_of(
    queue: str, ask: Ask, fetch: Fetch, stopping: Callable[[], bool] = never_stopping
) -> Iterator[pa.RecordBatch]:
    """Read the batches of an output queue.

    Parameters
    ----------
    queue : str
        Its name.
    ask : Ask
        Calls the scheduler.
    fetch : callable
        Fetches an item from the worker that holds it.
    stopping : callable
        Returns True when the reader is to stop.

    Yields
    ------
    RecordBatch
        In the order of the queue; a batch is acknowledged when the next one is requested.
    """
    after = 0
    while not stopping():
        found = ask(NextRows(queue, after, WAIT_SECONDS))
        for number, address, item in found.items:
            rows = fetch(address, HeldRows(found.job, found.generation, item))
            with pa.ipc.open_stream(pa.py_buffer(rows)) as reader:
                yield from reader
            after = number
            ask(TakeRows(queue, after))
        if found.ended and not found.items:
            return
