"""A committed epoch on the Dask queue of a source for Spark: any client that gets it fetches a copy of the rows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from distributed import get_client

from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.handoff_calls import HandoffPlaces, StagedRows, StagingPlaces
from dask_elastic.runtime.transport.held_rows import ask_server, fetch_held
from dask_elastic.topology.duration import parse_duration
from dask_elastic.vocab.epoch import StagedPart
from dask_elastic.vocab.errors import HandoffError, JobEnded, NodeLost, SourceError, UnknownJob

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class EpochRows:
    """The rows of one epoch at one instance of a `sources.Spark`, too large for the queue itself.

    ``Queue("JOB/SOURCE[INSTANCE]").get()`` of any Dask client returns one, or for a small epoch the bytes of an Arrow
    IPC stream. Both are copies: the job processes the epoch in any case.

    Parameters
    ----------
    job, source : str
        The job and its source.
    instance : int
        The instance of the source.
    run : str
        The run of the job.
    number : int
        The place of the epoch among all that were committed for the source, from 1.
    query : str
        The streaming query that wrote it.
    epoch : int
        The micro-batch of the query.
    parts : tuple of StagedPart
        The attempts that the instance reads.

    Examples
    --------
    >>> entry = EpochRows("delays", "rows", 0, "run", 7, "query", 6, ())
    >>> entry.source, entry.epoch, entry.rows
    ('rows', 6, 0)
    """

    job: str
    source: str
    instance: int
    run: str
    number: int
    query: str
    epoch: int
    parts: tuple[StagedPart, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(part.rows for part in self.parts)

    def fetch(self, timeout: float | str = "30s", client: Client | None = None) -> pa.Table:
        """Fetch a copy of the rows.

        Parameters
        ----------
        timeout : float or str, optional
            Seconds to wait at most, or a duration.
        client : distributed.Client, optional
            A client of the cluster; the current one if left out.

        Returns
        -------
        Table
            The rows, with the columns in the order in which Spark has sent them.

        Raises
        ------
        TimeoutError
            If they are not there in time.
        NodeLost
            If the job has ended, or the worker that held the rows is lost.
        SourceError
            If the job has read them, and keeps no copy: without checkpoints at once, otherwise when a checkpoint
            covers them.

        Examples
        --------
        Get the newest rows that Spark has handed over to a job::

            entry = Queue("delays/rows[0]").get()
            table = entry.fetch() if isinstance(entry, de.EpochRows) else pa.ipc.open_stream(entry).read_all()
        """
        client = client or get_client()
        found: pa.Table = client.sync(self._fetched, client, timeout)
        return found

    async def afetch(self, timeout: float | str = "30s", client: Client | None = None) -> pa.Table:
        """Fetch a copy of the rows as `fetch` does, in a coroutine on the event loop of the client.

        Parameters
        ----------
        timeout : float or str, optional
            Seconds to wait at most, or a duration.
        client : distributed.Client, optional
            A client with ``asynchronous=True``; the current one if left out.

        Returns
        -------
        Table
            The rows.

        Raises
        ------
        Exception
            As `fetch`.

        Examples
        --------
        Within a coroutine::

            entry = await Queue("delays/rows[0]", client=client).get()
            table = await entry.afetch(client=client)
        """
        return await self._fetched(client or get_client(), timeout)

    async def _fetched(self, client: Client, timeout: float | str) -> pa.Table:
        seconds = parse_duration(timeout, "timeout")
        what = f"{self.rows} rows of job {self.job!r}, source {self.source!r}, query {self.query}, epoch {self.epoch}"
        try:
            async with asyncio.timeout(seconds):
                places = await self._places(client)
                streams = [await self._held(client, places, part) for part in self.parts]
        except TimeoutError as error:
            raise TimeoutError(f"{what}: no answer within {seconds:g} s") from error
        except (OSError, HandoffError, UnknownJob, JobEnded) as error:
            raise NodeLost(f"{what}: no copy is left ({error}). The job itself loses none of its epochs.") from error
        except SourceError as error:
            raise SourceError(f"{what}: {error}") from error
        tables = [pa.ipc.open_stream(pa.py_buffer(stream)).read_all() for stream in streams]
        names = tables[0].column_names
        return pa.concat_tables(table.select(names) for table in tables)

    async def _places(self, client: Client) -> StagingPlaces:
        """Return where the source is now: the job may have restarted since the epoch was committed."""
        places = await ask_server(client.scheduler, HandoffPlaces(self.job, self.source))
        if places.run != self.run:
            raise HandoffError("the job was submitted again")
        return places

    async def _held(self, client: Client, places: StagingPlaces, part: StagedPart) -> Payload:
        call = StagedRows(self.job, places.generation, self.source, self.instance, part)
        return await fetch_held(client, places.places[self.instance], call)
