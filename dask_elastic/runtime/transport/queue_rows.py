"""A large batch on a Dask queue: any client that gets it fetches the rows from the worker that holds them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from distributed import get_client

from dask_elastic.runtime.protocol.queue_calls import HeldRows
from dask_elastic.runtime.transport.held_rows import fetch_held
from dask_elastic.topology.duration import parse_duration
from dask_elastic.vocab.errors import HandoffError, NodeLost, SinkError, UnknownJob

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class QueueRows:
    """A batch that a `sinks.DaskQueue` has written, too large for the queue itself.

    ``Queue(name).get()`` of any Dask client returns one; a small batch is the bytes of an Arrow IPC stream instead.

    Parameters
    ----------
    queue : str
        Name of the queue.
    number : int
        The place in the queue, from 1; it begins anew when the writing job restarts.
    rows : int
        The number of rows.
    nbytes : int
        Their bytes as an Arrow IPC stream.
    job : str
        The job that wrote it.
    generation : int
        The generation of that job.
    address : str
        The worker that holds the rows.
    item : int
        The worker's number for them.

    Examples
    --------
    >>> entry = QueueRows("alerts", 7, 10_000, 2**20, "delays", 1, "tcp://127.0.0.1:40001", 6)
    >>> entry.queue, entry.rows
    ('alerts', 10000)
    """

    queue: str
    number: int
    rows: int
    nbytes: int
    job: str
    generation: int
    address: str
    item: int

    def fetch(self, timeout: float | str = "30s", client: Client | None = None) -> pa.RecordBatch:
        """Fetch the rows.

        Parameters
        ----------
        timeout : float or str, optional
            Seconds to wait at most, or a duration.
        client : distributed.Client, optional
            A client of the cluster; the current one if left out.

        Returns
        -------
        RecordBatch
            The rows.

        Raises
        ------
        TimeoutError
            If the worker does not answer in time.
        NodeLost
            If the worker that held the rows is lost, or no longer hosts the job.
        SinkError
            If the reader of the queue has taken them meanwhile.

        Examples
        --------
        >>> import dask_elastic as de
        >>> from dask.distributed import Client, Queue
        >>> topology = de.Topology("texts")
        >>> texts = topology.source("texts", de.sources.Arrow(pa.table({"text": ["long " * 20_000]})))
        >>> texts.sink(de.sinks.DaskQueue("texts"), name="out")
        >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
        ...     job = de.submit(topology, client)
        ...     Queue("texts").get().fetch().num_rows
        1
        """
        client = client or get_client()
        found: pa.RecordBatch = client.sync(self._fetched, client, timeout)
        return found

    async def afetch(self, timeout: float | str = "30s", client: Client | None = None) -> pa.RecordBatch:
        """Fetch the rows as `fetch` does, in a coroutine on the event loop of the client.

        Parameters
        ----------
        timeout : float or str, optional
            Seconds to wait at most, or a duration.
        client : distributed.Client, optional
            A client with ``asynchronous=True``; the current one if left out.

        Returns
        -------
        RecordBatch
            The rows.

        Raises
        ------
        Exception
            As `fetch`.

        Examples
        --------
        >>> import dask_elastic as de
        >>> from dask.distributed import Client, Queue
        >>> topology = de.Topology("texts")
        >>> texts = topology.source("texts", de.sources.Arrow(pa.table({"text": ["long " * 20_000]})))
        >>> texts.sink(de.sinks.DaskQueue("texts"), name="out")
        >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
        ...     job = de.submit(topology, client)
        ...     client.sync(Queue("texts").get().afetch, client=client).num_rows
        1
        """
        return await self._fetched(client or get_client(), timeout)

    async def _fetched(self, client: Client, timeout: float | str) -> pa.RecordBatch:
        seconds = parse_duration(timeout, "timeout")
        what = f"{self.rows} rows of queue {self.queue!r}, batch {self.number}"
        try:
            async with asyncio.timeout(seconds):
                held = await fetch_held(client, self.address, HeldRows(self.job, self.generation, self.item))
        except TimeoutError as error:
            raise TimeoutError(f"{what}: worker {self.address} has not answered within {seconds:g} s") from error
        except (OSError, HandoffError, UnknownJob) as error:
            raise NodeLost(
                f"{what} are lost: worker {self.address}, which held them for job {self.job!r}, is not there any more, "
                f"or no longer hosts that job ({error}). If the job takes checkpoints, it writes them again."
            ) from error
        except SinkError as error:
            raise SinkError(f"{what}: {error}") from error
        with pa.ipc.open_stream(pa.py_buffer(held)) as reader:
            return reader.read_next_batch()
