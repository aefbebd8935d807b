"""Reading what a `sinks.DaskQueue` puts on its queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.runtime.client.job import call, default_client
from dask_elastic.runtime.transport.queue_reader import batches_of

if TYPE_CHECKING:
    from distributed import Client


def read_queue(name: str, client: Client | None = None) -> Iterator[pa.RecordBatch]:
    """Read the batches of a queue until the job that writes it has ended.

    A batch counts as taken when the next one is asked for: a program that dies in between finds it again when it reads
    anew. One program at a time reads a queue.

    Parameters
    ----------
    name : str
        Name of the queue, as in `sinks.DaskQueue(name)`.
    client : distributed.Client, optional
        The cluster; the current client if left out. It must be able to reach the workers.

    Yields
    ------
    RecordBatch
        In the order of the queue. Waits while there is none, also for a job that has not begun.

    Raises
    ------
    ElasticError
        What the job failed with, behind the last batch.
    """
    client = client or default_client()

    def ask(operation: str, **arguments: Any) -> Any:
        return call(client, operation, **arguments)

    def fetch(address: str, **item: Any) -> Any:
        return client.sync(_fetch, client, address, item)

    yield from batches_of(name, ask, fetch)


async def _fetch(client: Client, address: str, item: dict[str, Any]) -> Any:
    return await client.rpc(address).elastic_held_rows(**item)
