"""Reading the rows that a `sinks.DaskQueue` puts on its queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from dask_elastic.runtime.client.call import call_scheduler, call_worker, default_client
from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.queue_calls import HeldRows
from dask_elastic.runtime.transport.queue_reader import batches_of

if TYPE_CHECKING:
    from distributed import Client


def read_queue(name: str, client: Client | None = None) -> Iterator[pa.RecordBatch]:
    """Read the batches of a queue until the job that writes it has ended.

    A batch counts as taken when the next one is requested: a program that dies in between gets it again when it reads
    the queue again. One program at a time reads a queue.

    Parameters
    ----------
    name : str
        Name of the queue, as in `sinks.DaskQueue(name)`.
    client : distributed.Client, optional
        The cluster; the current client if left out. It must be able to reach the workers.

    Yields
    ------
    RecordBatch
        In the order of the queue. Waits while there is none, also for a job that has not started.

    Raises
    ------
    ElasticError
        The error that the job failed with, after the last batch.
    """
    client = client or default_client()

    def ask(call: Call[B], /) -> B:
        return call_scheduler(client, call)

    def fetch(address: str, call: HeldRows) -> Payload:
        return call_worker(client, address, call)

    yield from batches_of(name, ask, fetch)
