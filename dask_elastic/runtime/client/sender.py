"""Sends a client's rows to one pushed source: over a connection to its worker, or through the scheduler."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from dask.utils import format_bytes

from dask_elastic.runtime.client.call import ask_scheduler
from dask_elastic.runtime.client.client_steps import ClientSteps, TimedWait
from dask_elastic.runtime.client.outlet import Encoded, Outlet, Waiter
from dask_elastic.runtime.client.sent_rows import parts_of
from dask_elastic.runtime.client.unacknowledged import Unacknowledged
from dask_elastic.runtime.protocol.job_calls import FindSource, PushedSource, Send
from dask_elastic.runtime.protocol.tables import table_bytes
from dask_elastic.topology.casting import cast_rows
from dask_elastic.vocab.errors import BatchTooLarge, ElasticError, NodeLost, SourceError, UnknownJob

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger("dask_elastic.client")

RETRY_SECONDS = 0.1
"""Seconds between two attempts to connect to a source whose job restarts."""

MOST_FAILURES = 20
"""After so many attempts to connect to workers, a client that could connect before sends through the scheduler."""

CHECK_SECONDS = 2.0
"""A caller that has waited so long asks the scheduler whether the job still runs."""


class Sender:
    """Sends batches to one pushed source, in the order of the calls.

    Parameters
    ----------
    client : distributed.Client
        The client.
    job, source : str
        The source.

    Attributes
    ----------
    calls : int
        Calls in progress.

    Notes
    -----
    A batch leaves without waiting for an answer. What becomes of it is known later: an error is raised by the next
    call. `Outlet` bounds the bytes that leave ahead of the worker's answers.

    A source of a job with checkpoints answers when batches are durable. What it has not answered is sent again when the
    connection breaks or the job restarts.
    """

    def __init__(self, client: Client, job: str, source: str):
        self.client = client
        self.job = job
        self.source = source
        self.calls = 0
        self._outlet: Outlet | None = None
        # The run of a job whose source makes rows durable, and what it has not acknowledged.
        self._run = ""
        self._unacknowledged: Unacknowledged | None = None
        self._resending = asyncio.Lock()
        self._failures = 0
        self._through_scheduler = False
        self._doubtful = False
        self._most_bytes: int | None = None
        self._schema: pa.Schema | None = None
        self._preparing = asyncio.Lock()

    def doubt(self) -> None:
        """Have the next call ask the scheduler whether the job still runs."""
        self._doubtful = True

    @property
    def idle(self) -> bool:
        """Whether it has no connection, nothing on the way, and no call in progress: the next one begins anew."""
        outlet = self._outlet
        return not (self.calls or self.uncertain_rows) and (outlet is None or outlet.ended)

    @property
    def uncertain_rows(self) -> int:
        """Rows that were sent and are not known to be taken."""
        if self._unacknowledged is not None:
            return self._unacknowledged.rows
        return 0 if self._outlet is None else self._outlet.uncertain_rows

    def send(
        self, batches: Sequence[pa.RecordBatch], due: float | None, wait: bool, timeout: float | None
    ) -> ClientSteps:
        """Send batches.

        Parameters
        ----------
        batches : sequence of RecordBatch
            The batches.
        due : float or None
            When the rows were due, in seconds since the epoch.
        wait : bool
            Whether to wait until the source has the rows.
        timeout : float or None
            Seconds within which the source must have room.

        Raises
        ------
        TimeoutError
            If it has none.
        SchemaMismatch
            If the rows cannot be cast to the schema that the source declares; none is sent.
        BatchTooLarge
            If a batch is too large for the worker of the source; none is sent.
        ElasticError
            If the source takes no more rows, or did not take those that were sent before.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._ready:
            yield self._prepare
        # All rows are cast before the first leave, and then cut: a cast may make them larger.
        parts = [part for batch in batches for part in parts_of(self._cast(batch))]
        self._check_sizes(parts)
        schema = self._schema
        for number, part in enumerate(parts):
            try:
                yield from self._send_one(part, schema, due, deadline, timeout)
            except _DeadlinePassed as error:
                rows = sum(part.num_rows for part in parts)
                done = sum(part.num_rows for part in parts[:number])
                raise TimeoutError(
                    f"source {self.source!r} of job {self.job!r} has had no room for {timeout:g} s: it reads more "
                    f"slowly than rows are sent. {done} of {rows} rows were sent: send the others later"
                ) from error
        if wait:
            yield from self.flush(timeout)

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._schema
        if schema is None:
            return batch
        return cast_rows(schema, batch, f"rows sent to source {self.source!r} of job {self.job!r}")

    def _check_sizes(self, batches: Sequence[pa.RecordBatch]) -> None:
        most = self._most_bytes
        for batch in batches:
            if most is not None and (nbytes := batch.nbytes) > most:
                has = "1 row has" if batch.num_rows == 1 else f"{batch.num_rows} rows have"
                raise BatchTooLarge(
                    f"source {self.source!r} of job {self.job!r}: {has} {format_bytes(nbytes)}, and the worker takes "
                    f"{format_bytes(most)} at once, the smaller of elastic.max-frame and a quarter of its "
                    "memory. Nothing was sent: send smaller rows, or give workers more memory"
                )

    def _send_one(
        self,
        batch: pa.RecordBatch,
        schema: pa.Schema | None,
        due: float | None,
        deadline: float | None,
        timeout: float | None,
    ) -> ClientSteps:
        encoded: Encoded | None = None
        used: Outlet | None = None
        while True:
            if not self._ready:
                yield self._prepare
                if not self._ready:
                    _check(deadline)
                    continue
            if self._schema is not schema:
                # The job was submitted anew, perhaps with another source.
                batch, schema, encoded = self._cast(batch), self._schema, None
            outlet = self._outlet
            if outlet is None and (unacknowledged := self._unacknowledged) is not None:
                kept = unacknowledged.add_stream(batch, due)
                yield from self._await_acknowledged(unacknowledged, kept.sequence, deadline, timeout)
                return
            if outlet is None:
                taken = yield functools.partial(self._send_through_scheduler, batch, due)
                if taken:
                    return
                _check(deadline)
                continue
            if encoded is None or outlet is not used:
                encoded, used = outlet.encode(batch, due), outlet
            waiter = outlet.offer(encoded)
            if waiter is None:
                return
            yield from self._wait(waiter, deadline)

    def flush(self, timeout: float | None) -> ClientSteps:
        """Wait until the source has all rows that were sent before.

        Raises
        ------
        TimeoutError
            If it has not within `timeout` seconds.
        ElasticError
            If it takes no more rows.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if (unacknowledged := self._unacknowledged) is not None:
            yield from self._await_acknowledged(unacknowledged, unacknowledged.newest, deadline, timeout)
            return
        outlet = self._outlet
        if outlet is None:
            return
        batches = outlet.batches
        outlet.ask()
        while (waiter := outlet.untaken(batches)) is not None:
            if outlet.ended:
                yield self._prepare
                # Another thread may have raised the reason already.
                raise self._lost(outlet)
            try:
                yield from self._wait(waiter, deadline)
            except _DeadlinePassed as error:
                raise self._late(timeout) from error

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(
            f"source {self.source!r} of job {self.job!r} has not taken all rows within {timeout or 0.0:.3g} s: "
            f"{self.uncertain_rows} are on the way, and remain so"
        )

    def _await_acknowledged(
        self, unacknowledged: Unacknowledged, sequence: int, deadline: float | None, timeout: float | None
    ) -> ClientSteps:
        """Wait until the batches up to a number are acknowledged, through any number of restarts of the job."""
        try:
            while unacknowledged.acknowledged < sequence:
                if unacknowledged is not self._unacknowledged:
                    raise SourceError(
                        f"source {self.source!r} of job {self.job!r}: {unacknowledged.rows} rows may not have been "
                        "taken; another call has raised the reason"
                    )
                outlet = self._outlet
                if not self._ready:
                    yield self._prepare
                    _check(deadline)
                elif outlet is None:
                    yield functools.partial(self._resend_through_scheduler, unacknowledged)
                    _check(deadline)
                else:
                    # The future comes first: an answer between the look and the wait would be missed.
                    news = outlet.news()
                    outlet.ask()
                    if unacknowledged.acknowledged < sequence:
                        yield from self._wait(news, deadline)
        except _DeadlinePassed as error:
            raise self._late(timeout) from error

    def _wait(self, waiter: Waiter, deadline: float | None) -> ClientSteps:
        """Wait for news, at most until the deadline; ask the scheduler when there is none for long."""
        _check(deadline)
        left = CHECK_SECONDS if deadline is None else min(CHECK_SECONDS, max(0.0, deadline - time.monotonic()))
        yield TimedWait(waiter, left)
        if not waiter.done() and left == CHECK_SECONDS:
            self._doubtful = True
            yield self._prepare

    # connecting

    @property
    def _ready(self) -> bool:
        outlet = self._outlet
        return not self._doubtful and (self._through_scheduler if outlet is None else not outlet.ended)

    async def _prepare(self) -> None:
        """Find the source and connect to its worker, unless that is done.

        Raises
        ------
        ElasticError
            If the source takes no more rows, or did not take those that were sent before.
        """
        async with self._preparing:
            outlet = self._outlet
            if self._ready:
                return
            try:
                if outlet is not None and not self._run:
                    outlet.check()
                place = await ask_scheduler(self.client, FindSource(self.job, self.source))
                self._check_run(place)
                if place.run:
                    await self._renew(place)
                    return
                if not place.addresses:
                    await self._await_restart()
                    return
            except ElasticError as error:
                if count := self.uncertain_rows:
                    error.add_note(f"{count} rows sent to source {self.source!r} may not have been taken.")
                self.close()
                self._run, self._unacknowledged = "", None
                raise
            outlet = self._outlet
            self._doubtful = False
            self._most_bytes = place.most_bytes
            if outlet is None or place.generation != outlet.place.generation:
                self._schema = None if place.schema is None else pa.ipc.read_schema(pa.py_buffer(place.schema))
            if outlet is not None:
                restarted = place.generation != outlet.place.generation
                if not outlet.ended and not restarted:
                    return
                self.close()
                if outlet.uncertain_rows or not (restarted or outlet.broken):
                    raise self._lost(outlet)
            self._outlet = await self._connect(place)
            self._through_scheduler = self._outlet is None

    def _check_run(self, place: PushedSource) -> None:
        """Forget the run of a job that was submitted anew; raise if it has not acknowledged all rows."""
        outlet = self._outlet
        if not self._run or place.run == self._run:
            return
        if self.uncertain_rows and outlet is not None:
            raise self._lost(outlet)
        self.close()
        self._run, self._unacknowledged = "", None

    async def _await_restart(self) -> None:
        """Wait a moment for a job that restarts, and raise for rows that its source had not taken and may lose."""
        outlet = self._outlet
        self.close()
        if outlet is not None and outlet.uncertain_rows:
            raise self._lost(outlet)
        await asyncio.sleep(RETRY_SECONDS)

    async def _renew(self, place: PushedSource) -> None:
        """Connect to a source that makes rows durable, and send again what it has not acknowledged.

        The caller repeats this until it has succeeded: meanwhile the job restarts, or its restart is about to begin.

        Raises
        ------
        SourceError
            If the source has ended.
        """
        outlet = self._outlet
        if self._unacknowledged is None:
            self._run, self._unacknowledged = place.run, Unacknowledged()
        if place.addresses and outlet is not None and not outlet.ended and place.generation == outlet.place.generation:
            self._doubtful = False
            return
        if outlet is not None:
            # It stays in place: until there is another one, callers find that it has ended.
            outlet.close()
        renewed = None
        try:
            renewed = await self._connect(place) if place.addresses else None
            # Where workers could be reached before, this one is probably lost, and about to be replaced.
            self._failures = 0 if renewed is not None or not place.addresses else self._failures + 1
            most = 0 if outlet is None else MOST_FAILURES
            self._through_scheduler = self._failures > most
        except SourceError:
            raise
        except ElasticError as error:
            logger.info("job %r: %s", self.job, error)
        if renewed is None and not self._through_scheduler:
            await asyncio.sleep(RETRY_SECONDS)
            return
        self._most_bytes = place.most_bytes
        self._schema = None if place.schema is None else pa.ipc.read_schema(pa.py_buffer(place.schema))
        self._outlet, self._doubtful = renewed, False

    def _lost(self, outlet: Outlet) -> ElasticError:
        """Return the error for rows that were sent on a connection that has ended."""
        source = f"source {self.source!r} of job {self.job!r}"
        count = outlet.uncertain_rows
        if outlet.broken is not None:
            return NodeLost(
                f"the connection to {source} at {outlet.address} broke ({outlet.broken}): the last {count} rows that "
                "were sent may not have been taken"
            )
        lost = f", and has not taken the last {count} rows that were sent" if count else ""
        return SourceError(f"{source} has ended: it takes no more rows{lost}")

    async def _connect(self, place: PushedSource) -> Outlet | None:
        """Return a connection to the source's worker; None if this client has to go through the scheduler."""
        client = self.client
        if client.direct_to_workers is False or _scheme(place.addresses[0]) != _scheme(client.scheduler.address):
            return None
        outlet = Outlet(place, self._unacknowledged)
        try:
            await outlet.open(self.job, client.connection_args)
        except OSError as error:
            logger.info("job %r: rows go through the scheduler: %r", self.job, error)
            return None
        return outlet

    async def _send_through_scheduler(self, batch: pa.RecordBatch, due: float | None) -> bool:
        """Send a batch and wait until the source has it; returns False if the source has no room."""
        body = memoryview(table_bytes(pa.Table.from_batches([batch])))
        return await ask_scheduler(self.client, Send(self.job, self.source, 0, body, due))

    async def _resend_through_scheduler(self, unacknowledged: Unacknowledged) -> None:
        """Send what is not acknowledged, in order, as long as the source has room."""
        async with self._resending:
            for kept in unacknowledged.all():
                call = Send(self.job, self.source, 0, kept.stream(), kept.due, unacknowledged.sender, kept.sequence)
                try:
                    taken = await ask_scheduler(self.client, call)
                except (NodeLost, UnknownJob, OSError) as error:
                    # The scheduler says whether the job restarts.
                    logger.info("job %r: %s", self.job, error)
                    self._doubtful, self._through_scheduler = True, False
                    await asyncio.sleep(RETRY_SECONDS)
                    return
                if not taken:
                    return
                unacknowledged.acknowledge(kept.sequence)

    def close(self) -> None:
        """Close the connection, on the client's event loop; the next call connects again."""
        outlet, self._outlet = self._outlet, None
        self._through_scheduler = False
        if outlet is not None:
            outlet.close()


def _check(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise _DeadlinePassed


class _DeadlinePassed(Exception):
    """Raised within this module only; the caller gets a `TimeoutError` with an explanation."""


def _scheme(address: str) -> str:
    return address.partition("://")[0]
