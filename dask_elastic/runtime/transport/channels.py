"""The channels between this node and others: connected, watched by heartbeats, given up in both directions at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from dask_elastic.runtime.config.worker_options import WorkerOptions
from dask_elastic.runtime.transport.dispatch import Dispatch
from dask_elastic.runtime.transport.error_log import ErrorLog
from dask_elastic.runtime.transport.lanes import CommReader, SocketReader
from dask_elastic.runtime.transport.packet import Packet
from dask_elastic.runtime.transport.peer import Peer, address_of
from dask_elastic.runtime.transport.program_end import program_ends
from dask_elastic.runtime.transport.reading import WATCH
from dask_elastic.vocab.errors import NodeLost, ProtocolError

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.comm import Comm

logger = logging.getLogger("dask_elastic.node")

DRAIN_SECONDS = 1.0
"""Seconds for which a node is still read after the connection to it broke: its last messages may settle sub-batches."""


class Channels:
    """Connections to other nodes, one each way.

    Parameters
    ----------
    worker : distributed.Worker
        This worker.
    options : WorkerOptions
        Interval and timeout of heartbeats.
    make_dispatch : callable
        ``make_dispatch(address, incarnation)`` makes the dispatch of one connection of a node.
    on_lost : callable
        Called on the event loop with the address of a node that is given up, and the reason.

    Notes
    -----
    Dask itself notices a stopped worker after minutes. Here a node from which nothing is received for
    `heartbeat_timeout` is given up: what it sends afterwards meets a closed connection.
    """

    def __init__(
        self,
        worker: Worker,
        options: WorkerOptions,
        make_dispatch: Callable[[str, int], Dispatch],
        on_lost: Callable[[str, NodeLost], None],
    ):
        self.worker = worker
        self.options = options
        self._make_dispatch = make_dispatch
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, Peer] = {}
        self._readers: dict[str, CommReader | SocketReader] = {}
        self._dispatches: dict[str, Dispatch] = {}
        self._incarnations = itertools.count(1)
        # A lock exists as long as it is held or waited for: workers that are replaced have other addresses.
        self._dialling: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closed = threading.Event()
        threading.Thread(target=self._run_beats, name="elastic-beats", daemon=True).start()

    def peer(self, address: str) -> Peer:
        """Return the connection to another node, which `connect` has made.

        Raises
        ------
        NodeLost
            If the connection has been lost since.
        """
        peer = self._peers.get(address)
        if peer is None:
            raise NodeLost(f"the channel from {address_of(self.worker)} to {address} is closed")
        return peer

    async def connect(self, address: str) -> None:
        """Connect to another node, unless there is a connection.

        Raises
        ------
        NodeLost
            If the other node does not accept the connection, or this one has closed its channels.
        """
        # The lock lets jobs that are submitted at the same time share one channel.
        async with self._dialling.setdefault(address, asyncio.Lock()):
            if address not in self._peers:
                incarnation = next(self._incarnations)
                peer = Peer(self.worker, address, self._peer_broken, self.options.max_frame, incarnation)
                await peer.connect()
                if self._closed.is_set():
                    peer.close()
                    raise NodeLost(f"{address_of(self.worker)} has closed its channels")
                self._peers[address] = peer

    async def serve(self, comm: Comm, sender: str, lane: str, incarnation: int) -> None:
        """Read what another node sends, until the connection ends."""
        if sender in self._readers:
            self.give_up(sender, "it opened a new connection")
        dispatch = self._dispatches[sender] = self._make_dispatch(sender, incarnation)
        handle = functools.partial(_handle, dispatch)
        reader: CommReader | SocketReader
        if lane == "socket":
            reader = SocketReader(comm, handle, self.options.max_frame, watch=WATCH)
        else:
            reader = CommReader(comm, handle, watch=WATCH)
        self._readers[sender] = reader
        try:
            error = await reader.ended()
            # The connection to that node would break only at the next write.
            if self._readers.get(sender) is reader and not self._closed.is_set():
                self.give_up(sender, f"its connection broke: {error!r}")
        finally:
            reader.close()

    def give_up(self, address: str, reason: str) -> None:
        """Close both connections with a node and report it as lost; called on the event loop."""
        peer, reader = self._peers.pop(address, None), self._readers.pop(address, None)
        if reader is not None:
            # Packets that have arrived and are not handled yet are dropped.
            self._dispatches.pop(address).close()
            reader.close()
        if peer is not None:
            peer.close()
        if peer is not None or reader is not None:
            here = address_of(self.worker)
            logger.info("%s gives up %s: %s", here, address, reason)
            self._on_lost(address, NodeLost(f"the channel from {here} to {address} broke: {reason}"))

    def _peer_broken(self, peer: Peer, error: BaseException) -> None:
        delay = DRAIN_SECONDS if peer.address in self._readers else 0.0
        self._loop.call_later(delay, self._unreachable, peer, error)

    def _unreachable(self, peer: Peer, error: BaseException) -> None:
        if self._peers.get(peer.address) is peer and not self._closed.is_set():
            self.give_up(peer.address, repr(error))

    # heartbeats

    def _run_beats(self) -> None:
        interval, errors = self.options.heartbeat_interval, ErrorLog(logger)
        before = time.monotonic()
        # The loop may be closed without the channels, and the worker with it.
        while not (self._closed.wait(interval) or self._loop.is_closed()):
            now = time.monotonic()
            # A process that was suspended itself cannot tell how long the others were silent.
            was_suspended = now - before > self.options.heartbeat_timeout / 2
            before = now
            self._beat(now, was_suspended, errors)
            errors.settle()
        errors.settle(ends=True)

    def _beat(self, now: float, was_suspended: bool, errors: ErrorLog) -> None:
        for peer in list(self._peers.values()):
            try:
                peer.send_beat()
            except Exception as error:  # without heartbeats all nodes would give this one up, one after the other
                if self._loop.is_closed() or program_ends():
                    return
                errors.note(f"a heartbeat to {peer.address}", error)
        for address, reader in list(self._readers.items()):
            if was_suspended:
                reader.last_received = now
            elif now - reader.last_received > self.options.heartbeat_timeout:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the worker with it
                    self._loop.call_soon_threadsafe(self._silent, address, reader)

    def _silent(self, address: str, reader: CommReader | SocketReader) -> None:
        if self._readers.get(address) is reader:
            self.give_up(address, f"it sent nothing for {self.options.heartbeat_timeout:g} s")

    def close(self) -> None:
        """Close every connection."""
        self._closed.set()
        for peer in list(self._peers.values()):
            peer.close()
        for reader in list(self._readers.values()):
            reader.close()
        self._peers.clear()
        self._readers.clear()


def _handle(dispatch: Dispatch, packet: Packet) -> None:
    try:
        dispatch.handle(packet)
    except ProtocolError:
        raise
    except Exception as error:  # a packet that cannot be handled ends its connection
        logger.exception("a packet from %s cannot be handled", dispatch.sender)
        raise ProtocolError(f"a packet from {dispatch.sender} cannot be handled: {error!r}") from error
