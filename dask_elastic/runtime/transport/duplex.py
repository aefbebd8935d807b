"""One connection on which both ends send messages: a client's rows one way, the worker's answers the other way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.config.worker_options import MAX_FRAME
from dask_elastic.runtime.transport.lanes import READY, CommLane, CommReader, SocketLane, SocketReader, nothing
from dask_elastic.runtime.transport.packet import Packet
from dask_elastic.runtime.transport.packet_queue import PacketQueue
from dask_elastic.runtime.transport.wire import Buffers, Header, Message, messages_of, unpack
from dask_elastic.vocab.messages import Stamp

if TYPE_CHECKING:
    from distributed.comm import Comm

COALESCED_BYTES = 1 * 2**20
"""A write carries all waiting messages, up to about this size."""

_UNNUMBERED = Stamp(0, 0)
"""The stamp of every packet; the other end ignores it."""


class Duplex:
    """Sends messages from any thread, in order, and handles those of the other end in a thread of its own.

    Parameters
    ----------
    handle : callable
        ``handle(header, buffers)`` takes each message of the other end, in order; an error in it ends the connection.
    on_broken : callable
        Called with the error when sending fails; from any thread.
    limit : int
        Bytes of the largest packet that is read.
    handled : callable
        Called in the thread that handles messages after all those that it has got at once.

    Notes
    -----
    Sending never blocks: what is sent must be bounded by credit. The end that accepted must not send before the first
    message of the other one: until then the event loop of the other end may still read from the socket.
    """

    def __init__(
        self,
        handle: Callable[[Header, Buffers], None],
        on_broken: Callable[[BaseException], None],
        limit: int = MAX_FRAME,
        handled: Callable[[], None] = nothing,
    ):
        self._handle = handle
        self._handled = handled
        self._on_broken = on_broken
        self._limit = limit
        self._queue = PacketQueue(COALESCED_BYTES, lambda: _UNNUMBERED)
        self._lane: CommLane | SocketLane | None = None
        self._reader: CommReader | SocketReader | None = None

    def start(self, comm: Comm, plain: bool, accepted: bool) -> None:
        """Begin to send and to read; called once, on the event loop of the connection.

        Parameters
        ----------
        comm : Comm
            The connection, which this object owns from now on.
        plain : bool
            Whether threads use the socket of the comm; both ends must agree.
        accepted : bool
            Whether the other end dialled.
        """
        if plain:
            self._lane = SocketLane(comm, self._queue.next_packet, self._on_broken)
            greeting = READY if accepted else b""
            self._reader = SocketReader(comm, self._handle_packet, self._limit, greeting, self._handled)
        else:
            self._lane = CommLane(comm, self._queue.next_packet, self._on_broken)
            self._reader = CommReader(comm, self._handle_packet, self._handled)

    def send(self, *messages: Message) -> None:
        """Send messages; called by any thread, once the connection has started."""
        assert self._lane is not None
        if self._queue.put(messages):
            self._lane.transmit()

    def _handle_packet(self, packet: Packet) -> None:
        headers, _ = unpack(packet)
        for header, parts in messages_of(packet, headers):
            self._handle(header, parts)

    async def ended(self) -> BaseException:
        """Return the error that ended the connection, once it has ended; every message before it is handled."""
        assert self._reader is not None
        return await self._reader.ended()

    def close(self) -> None:
        """Close the connection; messages that have not been written are dropped. Called on the event loop."""
        if self._lane is not None:
            self._lane.close()
        if self._reader is not None:
            self._reader.close()


def read_ready(comm: Any) -> asyncio.Future[bytes]:
    """Return the bytes with which the end that accepted a plain connection announces that its thread reads."""
    ready: asyncio.Future[bytes] = comm.stream.read_bytes(len(READY))
    return ready
