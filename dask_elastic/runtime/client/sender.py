"""Sends a client's rows to one pushed source: over a connection to its worker, or through the scheduler."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dask_elastic.runtime.client.call import ask_scheduler
from dask_elastic.runtime.client.client_steps import ClientSteps, TimedWait
from dask_elastic.runtime.client.deadline import DeadlinePassed, NoAnswer, answered, check_deadline, deadline_of, unsent
from dask_elastic.runtime.client.outlet import Encoded, Outlet, Waiter
from dask_elastic.runtime.client.sent_rows import SentForm
from dask_elastic.runtime.client.unacknowledged import Unacknowledged, stream_of
from dask_elastic.runtime.protocol.job_calls import FindSource, PushedSource, Send
from dask_elastic.vocab.errors import ElasticError, NodeLost, SchedulerLost, SourceError, UnknownJob

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
        self._form = SentForm()
        self._preparing = asyncio.Lock()

    @property
    def _where(self) -> str:
        return f"source {self.source!r} of job {self.job!r}"

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
            If it has none, or the scheduler, when it has to be asked, does not answer.
        SchemaMismatch
            If the rows cannot be cast to the schema that the source declares; none is sent.
        BatchTooLarge
            If a batch is too large for the worker of the source; none is sent.
        ElasticError
            If the source takes no more rows, or did not take those that were sent before.
        """
        deadline, done = deadline_of(timeout), 0
        try:
            if not self._ready:
                yield functools.partial(self._prepare, deadline)
            form = self._form
            # All rows are cast before the first leave.
            for part in form.parts(batches, self._where):
                yield from self._send_one(part, form.schema, due, deadline, timeout)
                done += part.num_rows
        except DeadlinePassed as error:
            rows = sum(batch.num_rows for batch in batches)
            raise unsent(error, self._where, f"{done} of {rows} rows were sent", timeout or 0.0) from error
        if wait:
            yield from self.flush(timeout, deadline)

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
                yield functools.partial(self._prepare, deadline)
                if not self._ready:
                    check_deadline(deadline)
                    continue
            if self._form.schema is not schema:
                # The job was submitted anew, perhaps with another source.
                batch, schema, encoded = self._form.cast(batch, self._where), self._form.schema, None
            outlet = self._outlet
            if outlet is None and (unacknowledged := self._unacknowledged) is not None:
                stream = stream_of(batch)
                sequence = yield functools.partial(self._keep, unacknowledged, stream, due, batch.num_rows)
                if sequence is None:
                    continue
                yield from self._await_acknowledged(unacknowledged, sequence, deadline, timeout)
                return
            if outlet is None:
                taken = yield functools.partial(self._send_through_scheduler, batch, due, deadline)
                if taken:
                    return
                check_deadline(deadline)
                continue
            if encoded is None or outlet is not used:
                encoded, used = outlet.encode(batch, due), outlet
            waiter = outlet.offer(encoded)
            if waiter is None:
                return
            yield from self._wait(waiter, deadline)

    def flush(self, timeout: float | None, deadline: float | None = None) -> ClientSteps:
        """Wait until the source has all rows that were sent before.

        Parameters
        ----------
        timeout : float or None
            Seconds that the caller gives.
        deadline : float or None
            When they are over, by the monotonic clock, if they have begun before.

        Raises
        ------
        TimeoutError
            If it has not within `timeout` seconds.
        ElasticError
            If it takes no more rows.
        """
        deadline = deadline_of(timeout) if deadline is None else deadline
        if (unacknowledged := self._unacknowledged) is not None:
            yield from self._await_acknowledged(unacknowledged, unacknowledged.newest, deadline, timeout)
            return
        outlet = self._outlet
        if outlet is None:
            return
        batches = outlet.batches
        outlet.ask()
        try:
            while (waiter := outlet.untaken(batches)) is not None:
                if outlet.ended:
                    yield functools.partial(self._prepare, deadline)
                    # Another thread may have raised the reason already.
                    raise outlet.lost(self._where)
                yield from self._wait(waiter, deadline)
        except DeadlinePassed as error:
            raise self._late(timeout) from error

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(
            f"{self._where} has not taken all rows within {timeout or 0.0:.3g} s: {self.uncertain_rows} are on the "
            "way, and remain so"
        )

    def _await_acknowledged(
        self, unacknowledged: Unacknowledged, sequence: int, deadline: float | None, timeout: float | None
    ) -> ClientSteps:
        """Wait until the batches up to a number are acknowledged, through any number of restarts of the job."""
        try:
            while unacknowledged.acknowledged < sequence:
                if unacknowledged is not self._unacknowledged:
                    # The job may have been ended on purpose: then this raises that it has.
                    yield functools.partial(self._prepare, deadline)
                    raise SourceError(
                        f"{self._where}: {unacknowledged.rows} rows may not have been taken; another call has raised "
                        "the reason, or the job was submitted anew"
                    )
                outlet = self._outlet
                if not self._ready:
                    yield functools.partial(self._prepare, deadline)
                    check_deadline(deadline)
                elif outlet is None:
                    yield functools.partial(self._resend_through_scheduler, unacknowledged, deadline)
                    check_deadline(deadline)
                else:
                    # The future comes first: an answer between the look and the wait would be missed.
                    news = outlet.news()
                    outlet.ask()
                    if unacknowledged.acknowledged < sequence:
                        yield from self._wait(news, deadline)
        except DeadlinePassed as error:
            raise self._late(timeout) from error

    def _wait(self, waiter: Waiter, deadline: float | None) -> ClientSteps:
        """Wait for news, at most until the deadline; ask the scheduler when there is none for long."""
        check_deadline(deadline)
        left = CHECK_SECONDS if deadline is None else min(CHECK_SECONDS, max(0.0, deadline - time.monotonic()))
        has_news = yield TimedWait(waiter, left)
        if not has_news and left == CHECK_SECONDS:
            self._doubtful = True
            yield functools.partial(self._prepare, deadline)

    # connecting

    @property
    def _ready(self) -> bool:
        outlet = self._outlet
        return not self._doubtful and (self._through_scheduler if outlet is None else not outlet.ended)

    async def _prepare(self, deadline: float | None) -> None:
        """Find the source and connect to its worker, unless that is done.

        Raises
        ------
        NoAnswer
            If the scheduler does not answer before the deadline.
        ElasticError
            If the source takes no more rows, or did not take those that were sent before.
        """
        await answered(self._preparing.acquire(), deadline)
        try:
            if not self._ready:
                await self._find_and_connect(deadline)
        finally:
            self._preparing.release()

    async def _find_and_connect(self, deadline: float | None) -> None:
        outlet = self._outlet
        try:
            if outlet is not None and not self._run:
                outlet.check()
            place = await answered(ask_scheduler(self.client, FindSource(self.job, self.source)), deadline)
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
            # A client can reconnect to its scheduler; meanwhile the connection to the worker may be intact.
            if not isinstance(error, SchedulerLost):
                self._forget()
            raise
        outlet = self._outlet
        self._doubtful = False
        if outlet is None or place.generation != outlet.place.generation:
            self._form = SentForm.of(place.schema, place.most_bytes)
        else:
            self._form = self._form.limited(place.most_bytes)
        if outlet is not None:
            restarted = place.generation != outlet.place.generation
            if not outlet.ended and not restarted:
                return
            self.close()
            if outlet.uncertain_rows or not (restarted or outlet.broken):
                raise outlet.lost(self._where)
        self._outlet = await self._connect(place)
        self._through_scheduler = self._outlet is None

    def _check_run(self, place: PushedSource) -> None:
        """Forget the run of a job that was submitted anew; raise if it has not acknowledged all rows."""
        outlet = self._outlet
        if not self._run or place.run == self._run:
            return
        if self.uncertain_rows and outlet is not None:
            raise outlet.lost(self._where)
        self._forget()

    async def _await_restart(self) -> None:
        """Wait a moment for a job that restarts, and raise for rows that its source had not taken and may lose."""
        outlet = self._outlet
        self.close()
        if outlet is not None and outlet.uncertain_rows:
            raise outlet.lost(self._where)
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
        self._form = SentForm.of(place.schema, place.most_bytes)
        self._outlet, self._doubtful = renewed, False

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

    async def _send_through_scheduler(self, batch: pa.RecordBatch, due: float | None, deadline: float | None) -> bool:
        """Send a batch and wait until the source has it; returns False if the source has no room."""
        call = Send(self.job, self.source, 0, stream_of(batch), due)
        try:
            return await answered(ask_scheduler(self.client, call), deadline)
        except NoAnswer as error:
            raise NoAnswer(batch.num_rows) from error

    async def _keep(
        self, unacknowledged: Unacknowledged, stream: memoryview, due: float | None, rows: int
    ) -> int | None:
        """Return the number of a batch that goes through the scheduler; None if there is a connection by now.

        Connections are made on the same event loop: each has sent again all that was numbered before it was made, and
        would never send a batch that was numbered behind its back.
        """
        if self._outlet is not None or unacknowledged is not self._unacknowledged:
            return None
        return unacknowledged.add(None, [stream], due, rows, stream.nbytes).sequence

    async def _resend_through_scheduler(self, unacknowledged: Unacknowledged, deadline: float | None) -> None:
        """Send what is not acknowledged, in order, as long as the source has room."""
        await answered(self._resending.acquire(), deadline)
        try:
            for kept in unacknowledged.all():
                call = Send(self.job, self.source, 0, kept.stream(), kept.due, unacknowledged.sender, kept.sequence)
                try:
                    taken = await answered(ask_scheduler(self.client, call), deadline)
                except (NodeLost, UnknownJob, OSError) as error:
                    # The scheduler says whether the job restarts.
                    logger.info("job %r: %s", self.job, error)
                    self._doubtful, self._through_scheduler = True, False
                    await asyncio.sleep(RETRY_SECONDS)
                    return
                if not taken:
                    return
                unacknowledged.acknowledge(kept.sequence)
        finally:
            self._resending.release()

    async def drop(self) -> None:
        """Close the connection and forget what was sent, on the client's event loop."""
        # A connection that is being made would keep what is forgotten.
        async with self._preparing:
            self._forget()

    def _forget(self) -> None:
        self.close()
        self._run, self._unacknowledged = "", None

    def close(self) -> None:
        """Close the connection, on the client's event loop; the next call connects again."""
        outlet, self._outlet = self._outlet, None
        self._through_scheduler = False
        if outlet is not None:
            outlet.close()


def _scheme(address: str) -> str:
    return address.partition("://")[0]
