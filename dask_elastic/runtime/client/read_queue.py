"""Reading the queue that a `sinks.DaskQueue` writes."""

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

    A batch is acknowledged when the next one is requested. A program that fails before that gets the batch again when
    it reads the queue again. Only one program at a time can read a queue.

    Parameters
    ----------
    name : str
        Name of the queue, as in `sinks.DaskQueue(name)`.
    client : distributed.Client, optional
        A client of the cluster; the current client if left out. It must be able to connect to the workers.

    Yields
    ------
    RecordBatch
        The batches in the order of the queue. Blocks while the queue is empty, also before the job has started.

    Raises
    ------
    ElasticError
        After the last batch, if the job failed: its error.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask.distributed import Client
    >>> topology = de.Topology("numbers")
    >>> numbers = topology.source("numbers", de.sources.Arrow(pa.table({"number": [1, 2, 3]})))
    >>> numbers.sink(de.sinks.DaskQueue("numbers"), name="out")
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     job = de.submit(topology, client)
    ...     [batch["number"].to_pylist() for batch in read_queue("numbers", client)]
    [[1, 2, 3]]
    """
    client = client or default_client()

    def ask(operation: str, **arguments: Any) -> Any:
        return call(client, operation, **arguments)

    def fetch(address: str, **item: Any) -> Any:
        return client.sync(_fetch, client, address, item)

    yield from batches_of(name, ask, fetch)


async def _fetch(client: Client, address: str, item: dict[str, Any]) -> Any:
    return await client.rpc(address).elastic_held_rows(**item)
