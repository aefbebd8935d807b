"""What a client has sent to pushed sources: one sender for each, flushed before the client or its process ends."""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import numbers
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.runtime.client.call import ask_scheduler, flushing
from dask_elastic.runtime.client.client_steps import ClientSteps, run_async
from dask_elastic.runtime.client.deadline import NoAnswer, answered, deadline_of
from dask_elastic.runtime.client.sender import Sender
from dask_elastic.runtime.protocol.job_calls import FindSource
from dask_elastic.runtime.protocol.remote_errors import text_of
from dask_elastic.vocab.errors import ElasticError

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger("dask_elastic.client")

EXTENSION = "dask_elastic-senders"
"""Name of the client's extension."""

CLOSE_SECONDS = 10.0
"""Seconds for which a client that closes waits until sources have the rows that it sent."""

KEPT_IDLE = 16
"""Senders that are kept although their connection has ended, and nothing of theirs is on the way; newest first."""

AHEAD_SECONDS = 3_600.0
"""A due time may lie so far ahead of this clock; a larger one is no time in seconds."""


class Senders:
    """The senders of one client.

    Parameters
    ----------
    client : distributed.Client
        The client; it flushes before it closes.
    """

    def __init__(self, client: Client):
        self.client = client
        self._senders: dict[tuple[str, str], Sender] = {}
        self._only: dict[str, str] = {}
        self._lock = threading.Lock()
        teardown = client.preloads.teardown

        async def flush_and_teardown() -> None:
            await self.close()
            await teardown()

        # What Dask's client does first when it closes; it offers no other hook.
        client.preloads.teardown = flush_and_teardown
        _OPEN.add(self)

    def send(
        self, job: str, source: str | None, batches: list[pa.RecordBatch], due: float | None, wait: bool, timeout: Any
    ) -> ClientSteps:
        """Send batches to a source of a job, or to its only one; see `Sender.send`."""
        try:
            if source is None:
                source = self._only.get(job)
            if source is None:
                source = self._only[job] = yield lambda: self._only_source(job, timeout)
            sender = self._begin(job, source)
            try:
                yield from sender.send(batches, due, wait, timeout)
            finally:
                with self._lock:
                    sender.calls -= 1
        except ElasticError:
            self._only.pop(job, None)
            raise

    async def _only_source(self, job: str, timeout: float | None) -> str:
        try:
            found = await answered(ask_scheduler(self.client, FindSource(job, None)), deadline_of(timeout))
        except NoAnswer as error:
            raise TimeoutError(
                f"the scheduler has not answered within {timeout or 0.0:g} s which source job {job!r} has: no rows "
                "were sent. Send them later"
            ) from error
        return found.name

    def _begin(self, job: str, source: str) -> Sender:
        """Return the sender for a source, for one call; forget the oldest idle ones if it is new."""
        with self._lock:
            sender = self._senders.get((job, source))
            if sender is None:
                self._forget_idle()
                sender = self._senders[job, source] = Sender(self.client, job, source)
            sender.calls += 1
            return sender

    def _forget_idle(self) -> None:
        idle = [key for key, sender in list(self._senders.items()) if sender.idle]
        for key in idle[: max(0, len(idle) - KEPT_IDLE)]:
            self.client.loop.add_callback(self._senders.pop(key).close)
            # The next call asks for it again.
            self._only.pop(key[0], None)

    def flush(self, job: str, timeout: float | None) -> ClientSteps:
        """Wait until the sources of a job have all rows that were sent; see `Sender.flush`.

        Raises
        ------
        TimeoutError
            If one of them has not taken the rows in time, whatever becomes of others.
        ElasticError
            If one of them takes no more rows; the others have theirs. Notes tell of further errors.
        """
        deadline = deadline_of(timeout)
        failed: list[ElasticError | TimeoutError] = []
        for (name, _), sender in list(self._senders.items()):
            if name == job:
                try:
                    yield from sender.flush(timeout, deadline)
                except (ElasticError, TimeoutError) as error:
                    failed.append(error)
        if failed:
            first = next((late for late in failed if isinstance(late, TimeoutError)), failed[0])
            for other in failed:
                if other is not first:
                    first.add_note(f"{type(other).__name__}: {other}")
            raise first

    def doubt(self, job: str) -> None:
        """Have the next `send` to a job ask the scheduler whether the job still runs."""
        self._only.pop(job, None)
        for (name, _), sender in list(self._senders.items()):
            if name == job:
                sender.doubt()

    def drop(self, job: str) -> None:
        """Forget what was sent to a job, which was ended on purpose or is submitted anew."""
        self.doubt(job)
        for (name, _), sender in list(self._senders.items()):
            if name == job:
                self.client.loop.add_callback(sender.drop)

    @property
    def uncertain_rows(self) -> int:
        """Rows that were sent and are not known to be taken."""
        return sum(sender.uncertain_rows for sender in list(self._senders.values()))

    async def close(self) -> None:
        """Flush, then close the connections; on the client's event loop, while the client closes."""
        try:
            with flushing(self.client):
                await self._flush_all()
        finally:
            for sender in list(self._senders.values()):
                sender.close()
            self._senders.clear()

    async def _flush_all(self) -> None:
        """Flush all senders at the same time: Dask cancels the closing of a client that takes long."""
        uncertain = [(*key, sender) for key, sender in list(self._senders.items()) if sender.uncertain_rows]
        await asyncio.gather(*(self._flush_one(*one) for one in uncertain))

    async def _flush_one(self, job: str, source: str, sender: Sender) -> None:
        try:
            await run_async(self.client, sender.flush(CLOSE_SECONDS))
        except asyncio.CancelledError:  # Dask, or the program, waits for the end of the client no longer
            logger.warning("rows sent to source %r of job %r may not have been taken: no time was left", source, job)
            raise
        except Exception as error:  # the client closes, or the process ends, in any case
            logger.warning("rows sent to source %r of job %r may not have been taken: %s", source, job, text_of(error))

    def flush_at_exit(self) -> None:
        """Flush in a process that ends without closing its client."""
        loop = getattr(self.client.loop, "asyncio_loop", None)
        if self.client.asynchronous or loop is None or not loop.is_running():
            return
        if self.uncertain_rows:
            self.client.sync(self._flush_all)


def senders_of(client: Client) -> Senders:
    """Return the senders of a client."""
    senders: Senders | None = client.extensions.get(EXTENSION)
    if senders is None:
        senders = client.extensions.setdefault(EXTENSION, Senders(client))
    return senders


def doubt(client: Client, job: str) -> None:
    """Have the client's next `send` to a job ask the scheduler whether the job still runs."""
    if EXTENSION in client.extensions:
        senders_of(client).doubt(job)


def drop(client: Client, job: str) -> None:
    """Forget what the client has sent to a job, which is ended on purpose or was submitted anew."""
    if EXTENSION in client.extensions:
        senders_of(client).drop(job)


def checked_due(due: Any) -> float | None:
    """Return a due time as a float.

    Raises
    ------
    TypeError
        If it is no number.
    ValueError
        If it is no time in seconds since the epoch.

    Examples
    --------
    >>> checked_due(1_750_000_000), checked_due(None)
    (1750000000.0, None)
    """
    if due is None:
        return None
    if isinstance(due, bool) or not isinstance(due, numbers.Real):
        raise TypeError(f"due is {due!r}: give seconds since the epoch, as time.time() or datetime.timestamp() return")
    seconds = float(due)
    if not math.isfinite(seconds) or not 0 <= seconds <= time.time() + AHEAD_SECONDS:
        raise ValueError(
            f"due is {due!r}, which is not a time in seconds since the epoch, or more than an hour ahead: give a value "
            "such as time.time() returns"
        )
    return seconds


_OPEN: weakref.WeakSet[Senders] = weakref.WeakSet()


def _flush_all() -> None:
    for senders in list(_OPEN):
        try:
            senders.flush_at_exit()
        except Exception as error:  # the process ends in any case, and others flush, too
            logger.warning("rows that a client has sent may not have been taken: %s", text_of(error))


# Dask's own function, which closes the clients, was registered earlier, so it is called later.
atexit.register(_flush_all)
