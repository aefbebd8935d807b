"""Lanes carry packets to one peer: on the socket under a plain TCP comm, or on any Dask comm (TLS, in-process).

Threads that read and write the socket itself need a third of the time that the event loops on both sides take, and
leave the loops to Dask. A TLS connection cannot be read and written by two threads, and an in-process one has no
socket: these are carried by the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
from distributed.comm.tcp import TCP

from dask_elastic.runtime.config.worker_options import MAX_FRAME
from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.packet import PREFIX, Packet
from dask_elastic.runtime.transport.reading import Reading, ReadingWatch
from dask_elastic.vocab.errors import ProtocolError

logger = logging.getLogger("dask_elastic.lanes")

READY = b"elastic!"
"""Sent by the reading side of a socket once the event loop no longer reads from it."""

AT_ONCE_BYTES = 128 * 2**10
"""Packets up to this size are sent by the calling thread; larger ones by the lane's own thread."""

FRAMES_AT_ONCE = 512
"""Linux takes at most 1,024 buffers in one call."""

READ_AT_ONCE = 4 * 2**20
"""Bytes read in one call. Each call counts as a heartbeat, so a large packet on a slow network causes no timeout."""

CHUNK_BYTES = 64 * 2**10
"""Bytes of small packets that are read in one call, however many packets they are."""

NextPacket = Callable[[], Packet | None]


def nothing() -> None:
    """Do nothing, after the packets of a connection to which that makes no difference."""


def is_plain(comm: Any) -> bool:
    """Return whether a comm is a plain TCP connection, whose socket threads can use."""
    return type(comm) is TCP


def take_socket(comm: Any) -> socket.socket:
    """Stop the event loop from reading a plain comm; return a duplicate of its socket. The comm keeps the original."""
    stream = comm.stream
    stream.io_loop.remove_handler(stream.socket)
    taken: socket.socket = stream.socket.dup()
    taken.setblocking(True)
    return taken


class CommLane:
    """Writes packets on a Dask comm, on the event loop.

    Parameters
    ----------
    comm : Comm
        The connection.
    next_packet : callable
        Returns the next packet to write; None if there is none: `transmit` is called again once there is.
    on_broken : callable
        Called with the error that broke the connection.
    """

    def __init__(self, comm: Any, next_packet: NextPacket, on_broken: Callable[[BaseException], None]):
        self._comm = comm
        self._next_packet = next_packet
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()
        self._task = asyncio.create_task(self._write_all())

    def transmit(self) -> None:
        """Write what is queued; called by any thread."""
        self._loop.call_soon_threadsafe(self._wanted.set)

    async def _write_all(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                while (packet := self._next_packet()) is not None:
                    await self._comm.write(packet.to_message())
        except Exception as error:  # any error breaks the connection, and is handled as its loss
            self._on_broken(error)

    def close(self) -> None:
        """Close the lane; packets that have not been written are dropped."""
        self._task.cancel()
        self._comm.abort()


class SocketLane:
    """Writes packets on a socket: the calling thread writes what the socket takes without waiting, a writer the rest.

    Parameters
    ----------
    comm : Comm
        The plain connection that the socket belongs to.
    next_packet : callable
        Returns the next packet to write; None if there is none: `transmit` is called again once there is.
    on_broken : callable
        Called with the error that broke the connection, in the thread that found it.
    """

    def __init__(self, comm: Any, next_packet: NextPacket, on_broken: Callable[[BaseException], None]):
        self._comm = comm
        self._socket = take_socket(comm)
        self._next_packet = next_packet
        self._on_broken = on_broken
        # What the writer is to send first, for each time that work is left to it; None at the end.
        self._left: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._closed = False
        threading.Thread(target=self._run, name="elastic-writer", daemon=True).start()

    def transmit(self) -> None:
        """Write what is queued; called by any thread, but never by two at a time."""
        try:
            left = self._send_at_once()
        except Exception as error:  # whatever it is, packets behind this one would be out of order
            self._broken(error)
            return
        # Without a rest another thread may transmit by now.
        if left:
            self._left.put(left)

    def _send_at_once(self) -> list[Any]:
        """Send without waiting; returns the rest of a packet that the socket did not take whole."""
        while (packet := self._next_packet()) is not None:
            frames = packet.to_frames()
            if packet.nbytes > AT_ONCE_BYTES:
                return frames
            try:
                sent = self._socket.sendmsg(frames[:FRAMES_AT_ONCE], [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            if left := _after(frames, sent):
                return left
        return []

    def _run(self) -> None:
        try:
            while (left := self._left.get()) is not None and not self._closed:
                self._send_waiting(left)
                while (packet := self._next_packet()) is not None:
                    self._send_waiting(packet.to_frames())
        except Exception as error:  # as above
            self._broken(error)
        finally:
            self._socket.close()

    def _send_waiting(self, frames: list[Any]) -> None:
        while frames:
            frames = _after(frames, self._socket.sendmsg(frames[:FRAMES_AT_ONCE]))

    def _broken(self, error: BaseException) -> None:
        if not self._closed:
            self._on_broken(error)

    def close(self) -> None:
        """Close the lane; packets that have not been written are dropped."""
        self._closed = True
        _shut(self._socket)
        self._left.put(None)
        self._comm.abort()


def _after(frames: list[Any], sent: int) -> list[Any]:
    """Return the frames that are left after `sent` bytes of them have been sent."""
    for number, frame in enumerate(frames):
        if sent < len(frame):
            return [memoryview(frame)[sent:], *frames[number + 1 :]] if sent else frames[number:]
        sent -= len(frame)
    return []


def _shut(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # the peer has closed it, or another thread has
        logger.debug("shutting a connection down: %r", error)


class CommReader:
    """Reads packets from a Dask comm on the event loop, and handles them in a thread of its own.

    Parameters
    ----------
    comm : Comm
        The connection.
    handle : callable
        Takes each packet, in order.
    handled : callable
        Called in the same thread after each packet.
    watch : ReadingWatch, optional
        Relieves the thread while it carries out runs between two packets; without it there are none.

    Attributes
    ----------
    last_received : float
        When something was received last, by the monotonic clock.
    """

    def __init__(
        self,
        comm: Any,
        handle: Callable[[Packet], None],
        handled: Callable[[], None] = nothing,
        watch: ReadingWatch | None = None,
    ):
        self.last_received = time.monotonic()
        self._comm = comm
        self._handle = handle
        self._handled_read = handled
        self._loop = asyncio.get_running_loop()
        self._problem: ProtocolError | None = None
        self._handled = asyncio.Event()
        self._packets: SimpleQueue[Packet | None] = SimpleQueue()
        self._reading = Reading(self._run, watch)
        self._reading.start()

    async def ended(self) -> BaseException:
        """Return the error that ended the connection, once it has ended."""
        try:
            while True:
                self._packets.put(Packet.from_message(await self._comm.read()))
                self.last_received = time.monotonic()
        except Exception as error:  # the caller decides what it means
            reason = error
        # Packets that arrived before the end are handled before the end is reported.
        self._packets.put(None)
        await self._handled.wait()
        return self._problem or reason

    def close(self) -> None:
        """End the connection and the thread."""
        self._packets.put(None)
        self._comm.abort()

    def _run(self, turn: int) -> None:
        if not self._reading.begins(turn):
            return
        while self._problem is None and (packet := self._packets.get()) is not None:
            try:
                with DEFERRED:
                    self._handle_one(packet)
            finally:
                self._handled_read()
            if not self._reading.goes_on(turn):
                return
        self._reading.end()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the worker with it
            self._loop.call_soon_threadsafe(self._end)

    def _handle_one(self, packet: Packet) -> None:
        try:
            self._handle(packet)
        except ProtocolError as error:
            # Later packets would be out of order, also in a thread that relieves this one in a run.
            self._problem = error

    def _end(self) -> None:
        self._handled.set()
        self._comm.abort()


class SocketReader:
    """Reads packets from a socket in a thread of its own.

    Parameters
    ----------
    comm : Comm
        The plain connection that the socket belongs to; the event loop no longer reads it.
    handle : callable
        Takes each packet, in order.
    limit : int
        Bytes of the largest packet.
    greeting : bytes
        Sent before anything is read.
    handled : callable
        Called in the same thread after the packets that one call has read, when nothing is deferred.
    watch : ReadingWatch, optional
        Relieves the thread while it carries out runs between two reads; without it there are none.
    """

    def __init__(
        self,
        comm: Any,
        handle: Callable[[Packet], None],
        limit: int = MAX_FRAME,
        greeting: bytes = READY,
        handled: Callable[[], None] = nothing,
        watch: ReadingWatch | None = None,
    ):
        self._limit = limit
        self._greeting = greeting
        self._handling = False
        self._last_received = time.monotonic()
        self._comm = comm
        self._socket = take_socket(comm)
        self._handle = handle
        self._handled_read = handled
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[BaseException] = self._loop.create_future()
        self._problem: BaseException | None = None
        self._batches = self._read()
        self._reading = Reading(self._run, watch)
        self._reading.start()

    async def ended(self) -> BaseException:
        """Return the error that ended the connection, once it has ended."""
        return await self._ended

    def close(self) -> None:
        """End the connection and the thread."""
        _shut(self._socket)
        self._comm.abort()

    def _run(self, turn: int) -> None:
        is_relieved, error = False, None
        try:
            is_relieved = self._handle_all(turn)
        except Exception as reason:  # reported to the event loop, whatever it is
            error = reason
        finally:
            if not is_relieved:
                self._end_reading(turn, error or self._problem or EOFError("the peer has closed the connection"))

    def _handle_all(self, turn: int) -> bool:
        """Read and handle packets until the connection ends, or another thread reads on; returns whether one does."""
        if not self._reading.begins(turn):
            return True
        self._reads_again()
        greeting, self._greeting = self._greeting, b""
        if greeting:
            self._socket.sendall(greeting)
        while self._problem is None and (packets := next(self._batches, None)) is not None:
            self._handling = True
            try:
                with DEFERRED:
                    self._handle_each(packets)
            finally:
                self._handled_read()
            if not self._reading.goes_on(turn):
                return True
            self._reads_again()
        return False

    def _reads_again(self) -> None:
        # In this order: how long the packets took to handle says nothing about the peer.
        self._last_received = time.monotonic()
        self._handling = False

    def _handle_each(self, packets: list[Packet]) -> None:
        try:
            for packet in packets:
                self._handle(packet)
        except BaseException as error:
            # Later packets would be out of order, also in a thread that relieves this one in a run.
            self._problem = error
            raise

    def _end_reading(self, turn: int, error: BaseException) -> None:
        if not self._reading.goes_on(turn):
            # What this thread ran has failed, and the one that reads now has to end the connection.
            logger.error("a connection is closed", exc_info=error)
            _shut(self._socket)
            return
        self._reading.end()
        self._socket.close()
        try:
            self._loop.call_soon_threadsafe(self._end, error)
        except RuntimeError:  # the loop is closed, and the worker with it
            logger.debug("a connection ended after its worker: %r", error)

    @property
    def last_received(self) -> float:
        """When something was received last, by the monotonic clock; now, while a packet is handled."""
        # The socket is not read in the meantime, so receiving nothing does not mean that the peer is lost.
        return time.monotonic() if self._handling else self._last_received

    @last_received.setter
    def last_received(self, moment: float) -> None:
        self._last_received = moment

    def _end(self, error: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_result(error)

    def _read(self) -> Iterator[list[Packet]]:
        """Yield the packets that one call has read, at least one; ends when the peer has closed the connection."""
        chunk = np.empty(CHUNK_BYTES, dtype=np.uint8).data
        begin = end = 0
        while True:
            if end - begin < PREFIX.size:
                chunk[: end - begin] = bytes(chunk[begin:end])
                begin, end = 0, end - begin
                received = self._receive(chunk[end:])
                if not received:
                    return
                end += received
                continue
            packets: list[Packet] = []
            while end - begin >= PREFIX.size:
                count, nbytes = Packet.body_bytes(bytes(chunk[begin : begin + PREFIX.size]), self._limit)
                start = begin + PREFIX.size
                stop = min(start + nbytes, end)
                if packets and stop - start < nbytes:
                    # The complete ones are handled before the rest of this one is awaited.
                    break
                # A copy: rows that are kept for long must not keep the packets beside them. `np.empty` does not zero
                # the memory, as `bytearray` would.
                body = np.empty(nbytes, dtype=np.uint8).data
                body[: stop - start] = chunk[start:stop]
                if not self._fill(body[stop - start :]):
                    return
                begin = stop
                packets.append(Packet.from_body(count, body))
            yield packets

    def _fill(self, buffer: memoryview) -> bool:
        """Read until the buffer is full; returns False if the peer closes the connection before."""
        while len(buffer):
            received = self._receive(buffer[:READ_AT_ONCE], socket.MSG_WAITALL)
            if not received:
                return False
            buffer = buffer[received:]
        return True

    def _receive(self, buffer: memoryview, flags: int = 0) -> int:
        received = self._socket.recv_into(buffer, 0, flags)
        self._last_received = time.monotonic()
        return received
