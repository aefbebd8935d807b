"""Reading what a `sinks.DaskQueue` puts on its queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.runtime.job import call, default_client
from dask_elastic.runtime.report import load_error
from dask_elastic.topology.source import never_stopping

if TYPE_CHECKING:
    from distributed import Client

WAIT_SECONDS = 1.0


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


def batches_of(
    queue: str, ask: Callable[..., Any], fetch: Callable[..., Any], stopping: Callable[[], bool] = never_stopping
) -> Iterator[pa.RecordBatch]:
    """Read the batches of a queue by whatever means there are.

    Parameters
    ----------
    queue : str
        Its name.
    ask : callable
        Asks the scheduler: `ask("next_rows", queue=..., after=..., wait=...)`.
    fetch : callable
        Gets the answer of a worker: `fetch(address, job=..., run=..., item=...)`.
    stopping : callable
        True once nobody wants more.

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
