"""A client's connection to the mailbox of one source: rows leave without waiting for the worker's answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from distributed.comm import connect

from dask_elastic.runtime.client.unacknowledged import Unacknowledged
from dask_elastic.runtime.protocol.job_calls import PushedSource
from dask_elastic.runtime.protocol.remote_errors import load_error, text_of
from dask_elastic.runtime.transport.duplex import Duplex, read_ready
from dask_elastic.runtime.transport.lanes import is_plain
from dask_elastic.runtime.transport.push_protocol import OPERATION, WINDOW, cost_of
from dask_elastic.runtime.transport.wire import WHOLE_STREAM, Buffers, Encoder, Header
from dask_elastic.vocab.errors import ElasticError, NodeLost, ProtocolError, SourceError

if TYPE_CHECKING:
    from distributed.comm import Comm

CONNECT_SECONDS = 5.0
"""Seconds within which a worker must accept a connection; rows then go through the scheduler."""

Waiter = Future[None]
"""Done at the next news of a connection: rows were taken, or it has ended."""


class Encoded(NamedTuple):
    """A batch as one connection sends it.

    Parameters
    ----------
    schema : int
        The number of its schema on the connection.
    due : float or None
        When the rows were due.
    body : list of buffers
        The body.
    rows : int
        Rows of the batch.
    cost : int
        Bytes that it counts against the window.
    """

    schema: int
    due: float | None
    body: Buffers
    rows: int
    cost: int


class Outlet:
    """Sends batches to one instance of a pushed source, at most a window of bytes ahead of what its mailbox took.

    Any thread may call the methods; none blocks. The connection belongs to the event loop of the client.

    Parameters
    ----------
    place : PushedSource
        The source; rows go to its first instance.
    unacknowledged : Unacknowledged, optional
        For a source that acknowledges rows when they are durable: the batches that it has not acknowledged. `open`
        sends them again.

    Attributes
    ----------
    ended : bool
        Whether it takes no more rows: the source has ended, the job failed, or the connection broke.
    broken : BaseException or None
        Why the connection broke; None if it did not.
    """

    def __init__(self, place: PushedSource, unacknowledged: Unacknowledged | None = None):
        self.place = place
        self._unacknowledged = unacknowledged
        self.ended = False
        self.broken: BaseException | None = None
        self._error: bytes | None = None
        self._duplex = Duplex(self._handle, self._broken)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        # A send that fails notes the end of the connection in the thread that holds the lock.
        self._lock = threading.RLock()
        self._encoder = Encoder(self._schema_number)
        self._schemas: dict[bytes, int] = {}
        self._schema_list: list[bytes] = []
        self._begun = False
        self._waiters: list[Waiter] = []
        # Rows and sequence number of each batch that is not known to be taken.
        self._sent: list[tuple[int, int]] = []
        self._batches = self._taken = 0
        self._bytes = self._taken_bytes = 0

    @property
    def address(self) -> str:
        """The worker."""
        return self.place.addresses[0]

    async def open(self, job: str, connection_args: dict[str, Any]) -> None:
        """Connect, and wait until the worker has found the mailbox.

        Raises
        ------
        OSError
            If the worker cannot be reached.
        ElasticError
            If the mailbox takes no rows.
        """
        async with asyncio.timeout(CONNECT_SECONDS):
            comm = await connect(self.address, timeout=CONNECT_SECONDS, **connection_args)
            try:
                await self._take_over(comm)
            except BaseException:  # no other code would close the connection
                comm.abort()
                raise
            try:
                sender = "" if self._unacknowledged is None else self._unacknowledged.sender
                self._duplex.send((["begin", job, self.place.generation, self.place.name, 0, sender], []))
                # The future comes first: news between the question and the wait would be missed.
                while (news := self.news()) and not (self._begun or self.ended):
                    await asyncio.wrap_future(news)
                self.check()
                if self.broken is not None:
                    raise OSError(f"the connection to {self.address} broke: {text_of(self.broken)}") from self.broken
                self._send_again()
            except BaseException:  # the caller does not get the outlet
                self.close()
                raise

    async def _take_over(self, comm: Comm) -> None:
        plain = is_plain(comm)
        await comm.write({"op": OPERATION, "reply": False, "lane": "socket" if plain else "comm"})
        if plain:
            await read_ready(comm)
        self._loop = asyncio.get_running_loop()
        self._duplex.start(comm, plain, accepted=False)
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        self._broken(await self._duplex.ended())

    # sending

    def encode(self, rows: pa.RecordBatch, due: float | None) -> Encoded:
        """Return a batch for `offer`; it is valid for this connection only."""
        buffers: Buffers = []
        number = self._encoder.rows(rows, buffers)
        return Encoded(number, due, buffers, rows.num_rows, cost_of(buffers))

    def _schema_number(self, schema: bytes) -> int:
        try:
            with self._lock:
                number = self._schemas.get(schema)
                if number is None:
                    number = self._schemas[schema] = len(self._schemas)
                    self._schema_list.append(schema)
                    # Sent before the batch that needs it.
                    self._duplex.send((["schema"], [schema]))
                return number
        except BaseException as error:  # see `_interrupted`
            self._interrupted(error)
            raise

    def offer(self, batch: Encoded) -> Waiter | None:
        """Send a batch; if the window is used up or the source has ended, return what to wait for instead."""
        try:
            return self._offer(batch)
        except BaseException as error:  # see `_interrupted`
            self._interrupted(error)
            raise

    def _interrupted(self, error: BaseException) -> None:
        """Give the connection up after an error amid a send, such as a KeyboardInterrupt of the calling thread.

        A packet may be half written, a schema or batch counted that never left, and other threads may rely on this one
        to transmit their messages.
        """
        self._broken(ConnectionError(f"a send was interrupted by {error!r}"))

    def _offer(self, batch: Encoded) -> Waiter | None:
        with self._lock:
            if self.ended:
                return _done()
            if self._bytes - self._taken_bytes >= WINDOW:
                return self._news()
            sequence = 0
            if (unacknowledged := self._unacknowledged) is not None:
                schema = None if batch.schema == WHOLE_STREAM else self._schema_list[batch.schema]
                sequence = unacknowledged.add(schema, batch.body, batch.due, batch.rows, batch.cost).sequence
            self._send(batch, sequence)
        return None

    def _send(self, batch: Encoded, sequence: int) -> None:
        """Send a batch; called with the lock, since batches leave in the order in which they are counted."""
        self._batches += 1
        self._bytes += batch.cost
        self._sent.append((batch.rows, sequence))
        self._duplex.send((["rows", batch.schema, batch.due, sequence], batch.body))

    def _send_again(self) -> None:
        """Send the batches that no connection before had an acknowledgement for."""
        if self._unacknowledged is None:
            return
        with self._lock:
            for kept in self._unacknowledged.all():
                number = WHOLE_STREAM if kept.schema is None else self._schema_number(kept.schema)
                self._send(Encoded(number, kept.due, kept.body, kept.rows, kept.cost), kept.sequence)

    def ask(self) -> None:
        """Have the worker say how many batches it has taken."""
        if self.ended:
            return
        try:
            self._duplex.send((["ask"], []))
        except BaseException as error:  # see `_interrupted`
            self._interrupted(error)
            raise

    @property
    def batches(self) -> int:
        """Batches sent."""
        return self._batches

    def untaken(self, batches: int) -> Waiter | None:
        """Return what to wait for if it is not known that the first batches were taken; None if it is."""
        with self._lock:
            if self._taken >= batches:
                return None
            return _done() if self.ended else self._news()

    @property
    def uncertain_rows(self) -> int:
        """Rows that were sent and are not known to be taken."""
        with self._lock:
            return sum(rows for rows, _ in self._sent)

    def check(self) -> None:
        """Raise the error with which the job failed on the worker, if it did."""
        if self._error is not None:
            raise load_error(self._error)

    def lost(self, source: str) -> ElasticError:
        """Return the error for rows that were sent to a source, once the connection has ended."""
        count = self.uncertain_rows
        if self.broken is not None:
            return NodeLost(
                f"the connection to {source} at {self.address} broke ({text_of(self.broken)}): the last {count} rows "
                "that were sent may not have been taken"
            )
        lost = f", and has not taken the last {count} rows that were sent" if count else ""
        return SourceError(f"{source} has ended: it takes no more rows{lost}")

    # news of the connection

    def news(self) -> Waiter:
        """Return a future that is done at the next news."""
        with self._lock:
            return _done() if self.ended else self._news()

    def _news(self) -> Waiter:
        waiter: Waiter = Future()
        self._waiters.append(waiter)
        return waiter

    def _handle(self, header: Header, parts: Buffers) -> None:
        """Take a message of the worker, in the thread that reads the connection."""
        match header:
            case ["taken", int(batches), int(taken)]:
                self._note(batches, taken)
            case ["begun", int(last)]:
                if self._unacknowledged is not None:
                    self._unacknowledged.acknowledge(last)
                self._begun = True
                self._note(0, 0)
            case ["ended", int(batches)]:
                self._note(batches, 0, ended=True, error=bytes(parts[0]) if parts else None)
                self._close_soon()
            case _:
                raise ProtocolError(f"{self.address} sent {header!r:.200}: use one version of dask_elastic everywhere")

    def _broken(self, error: BaseException) -> None:
        if not self.ended:
            self.broken = error
            self._note(0, 0, ended=True)

    def _note(self, batches: int, taken: int, ended: bool = False, error: bytes | None = None) -> None:
        with self._lock:
            done = self._sent[: max(0, batches - self._taken)]
            del self._sent[: len(done)]
            if done and self._unacknowledged is not None:
                self._unacknowledged.acknowledge(done[-1][1])
            self._taken = max(self._taken, batches)
            self._taken_bytes = max(self._taken_bytes, taken)
            self.ended |= ended
            self._error = self._error or error
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            # A waiter that was cancelled is waited for no more.
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(None)

    def _close_soon(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the client with it
            self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """Close the connection; called on its event loop."""
        if self._watching is not None:
            self._watching.cancel()
        self._duplex.close()
        self._note(0, 0, ended=True)


def _done() -> Waiter:
    waiter: Waiter = Future()
    waiter.set_result(None)
    return waiter
