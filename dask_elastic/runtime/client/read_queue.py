"""Reading the queue that a `sinks.DaskQueue` writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from dask_elastic.runtime.client.call import call_scheduler, checked_client
from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.queue_calls import HeldRows
from dask_elastic.runtime.transport.held_rows import fetch_held
from dask_elastic.runtime.transport.queue_reader import QueueReader

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
    client = checked_client(client)

    def ask(call: Call[B], /) -> B:
        return call_scheduler(client, call)

    def fetch(address: str, call: HeldRows) -> Payload:
        rows: Payload = client.sync(fetch_held, client, address, call)
        return rows

    yield from QueueReader(name, ask, fetch).batches()
