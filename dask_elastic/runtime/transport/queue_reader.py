"""Reads the batches of an output queue, from a client or from a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.topology.source import never_stopping

WAIT_SECONDS = 1.0


def batches_of(
    queue: str, ask: Callable[..., Any], fetch: Callable[..., Any], stopping: Callable[[], bool] = never_stopping
) -> Iterator[pa.RecordBatch]:
    """Read the batches of an output queue.

    Parameters
    ----------
    queue : str
        Its name.
    ask : callable
        Asks the scheduler: `ask("next_rows", queue=..., after=..., wait=...)`.
    fetch : callable
        Fetches an item from the worker that holds it: `fetch(address, job=..., run=..., item=...)`.
    stopping : callable
        Returns True when the reader is to stop.

    Yields
    ------
    RecordBatch
        In the order of the queue; each is acknowledged when the next one is asked for.
    """
    after = 0
    while not stopping():
        found = ask("next_rows", queue=queue, after=after, wait=WAIT_SECONDS)
        for number, address, item in found["items"]:
            reply = fetch(address, job=found["job"], run=found["run"], item=item)
            if "error" in reply:
                raise load_error(reply["error"])
            with pa.ipc.open_stream(pa.py_buffer(reply["answer"])) as reader:
                yield from reader
            after = number
            ask("take_rows", queue=queue, through=after)
        if found["ended"] and not found["items"]:
            return
