"""The channels of a node to the others: made, watched, and given up in both directions at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from distributed.comm.addressing import get_address_host_port

from dask_elastic.runtime.config.worker_options import WorkerOptions
from dask_elastic.runtime.transport.dispatch import Dispatch
from dask_elastic.runtime.transport.lanes import CommReader, SocketReader
from dask_elastic.runtime.transport.packet import Packet
from dask_elastic.runtime.transport.peer import Peer, address_of
from dask_elastic.vocab.errors import NodeLost, ProtocolError

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.comm import Comm

logger = logging.getLogger("dask_elastic.node")

KNOCK_SECONDS = 0.2

LAST_WORDS_SECONDS = 1.0
"""Where the way to a node breaks, what it has said before is still read for so long: it tells what it had done."""


class Channels:
    """Connections to other nodes, one each way.

    Parameters
    ----------
    worker : distributed.Worker
        The worker that we are.
    options : WorkerOptions
        How often to send a sign of life, and after how much silence to give a node up.
    make_ingress : callable
        Makes what takes the packets of a node, of one connection with it.
    on_lost : callable
        Told, on the event loop, of a node that is given up, and why.

    Notes
    -----
    Dask itself notices a stopped worker after minutes. Here a node of which nothing is heard for `heartbeat_timeout`
    is given up: what it sends afterwards meets a closed connection.
    """

    def __init__(
        self,
        worker: Worker,
        options: WorkerOptions,
        make_ingress: Callable[[str, int], Dispatch],
        on_lost: Callable[[str, NodeLost], None],
    ):
        self.worker = worker
        self.options = options
        self._make_ingress = make_ingress
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, Peer] = {}
        self._readers: dict[str, CommReader | SocketReader] = {}
        self._ingresses: dict[str, Dispatch] = {}
        self._dialled: Counter[str] = Counter()
        self._dialling: dict[str, asyncio.Lock] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._run_beats, name="elastic-beats", daemon=True).start()

    @property
    def inbound(self) -> list[str]:
        """Addresses of the nodes that send here."""
        return list(self._readers)

    def peer(self, address: str) -> Peer:
        """Return the way to another node; `connect` has made it.

        Raises
        ------
        NodeLost
            If the connection has been lost since.
        """
        peer = self._peers.get(address)
        if peer is None:
            raise NodeLost(f"the channel from {address_of(self.worker)} to {address} is gone")
        return peer

    async def connect(self, address: str) -> None:
        """Make the way to another node, unless there is one."""
        # Jobs that are submitted at a time must share one channel, or their messages to a node would have no order.
        async with self._dialling.setdefault(address, asyncio.Lock()):
            if address not in self._peers:
                self._dialled[address] += 1
                incarnation = self._dialled[address]
                peer = Peer(self.worker, address, self._peer_broken, self.options.max_frame, incarnation)
                await peer.connect()
                if self._closed.is_set():
                    peer.close()
                    raise NodeLost(f"{address_of(self.worker)} has closed its channels")
                self._peers[address] = peer

    async def serve(self, comm: Comm, sender: str, lane: str, incarnation: int) -> None:
        """Read what another node sends us, until the connection ends."""
        if sender in self._readers:
            self.give_up(sender, "it has begun anew")
        ingress = self._ingresses[sender] = self._make_ingress(sender, incarnation)
        handle = functools.partial(_handle, ingress)
        reader: CommReader | SocketReader
        reader = SocketReader(comm, handle, self.options.max_frame) if lane == "socket" else CommReader(comm, handle)
        self._readers[sender] = reader
        try:
            error = await reader.ended()
            # Our own way there would notice no earlier than at its next write.
            if self._readers.get(sender) is reader and not self._closed.is_set():
                self.give_up(sender, f"its connection broke: {error!r}")
        finally:
            reader.close()

    def give_up(self, address: str, reason: str) -> None:
        """Close both ways to a node and say that it is lost; call it on the event loop."""
        peer, reader = self._peers.pop(address, None), self._readers.pop(address, None)
        if reader is not None:
            # What has arrived, and is not handled yet, is not handled any more.
            self._ingresses.pop(address).close()
            reader.close()
        if peer is not None:
            peer.close()
        if peer is not None or reader is not None:
            here = address_of(self.worker)
            logger.info("%s gives %s up: %s", here, address, reason)
            self._on_lost(address, NodeLost(f"the channel from {here} to {address} broke: {reason}"))

    def _peer_broken(self, peer: Peer, error: BaseException) -> None:
        listening = LAST_WORDS_SECONDS if peer.address in self._readers else 0.0
        self._loop.call_later(listening, self._unreachable, peer, error)

    def _unreachable(self, peer: Peer, error: BaseException) -> None:
        if self._peers.get(peer.address) is peer and not self._closed.is_set():
            self.give_up(peer.address, repr(error))

    # signs of life

    def _run_beats(self) -> None:
        interval = self.options.heartbeat_interval
        before = time.monotonic()
        while not self._closed.wait(interval):
            now = time.monotonic()
            # Who was away itself cannot say how long the others were silent.
            was_away = now - before > self.options.heartbeat_timeout / 2
            before = now
            self._beat(now, was_away)

    def _beat(self, now: float, was_away: bool) -> None:
        for peer in list(self._peers.values()):
            peer.send_beat()
        for address, reader in list(self._readers.items()):
            if was_away:
                reader.heard = now
            elif now - reader.heard > self.options.heartbeat_timeout:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the worker with it
                    self._loop.call_soon_threadsafe(self._silent, address, reader)

    def _silent(self, address: str, reader: CommReader | SocketReader) -> None:
        if self._readers.get(address) is reader:
            self.give_up(address, f"nothing was heard of it for {self.options.heartbeat_timeout:g} s")

    def close(self) -> None:
        """Close every connection."""
        self._closed.set()
        for peer in list(self._peers.values()):
            peer.close()
        for reader in list(self._readers.values()):
            reader.close()
        self._peers.clear()
        self._readers.clear()


async def has_died(address: str) -> bool:
    """Return whether nobody lives any more where a worker did; one that hangs, or cannot be reached, may be alive.

    Notes
    -----
    A process that is ending closes its connections one after the other, and may still take ours; it never answers it.
    A worker on plain TCP speaks first. One that hangs, or waits for a greeting in TLS, leaves the connection open.
    """
    if address.partition("://")[0] not in ("tcp", "tls"):
        return False
    host, port = get_address_host_port(address)
    writer = None
    try:
        async with asyncio.timeout(KNOCK_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            return not await reader.read(1)
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()


def _handle(ingress: Dispatch, packet: Packet) -> None:
    try:
        ingress.handle(packet)
    except ProtocolError:
        raise
    except Exception as error:  # whatever is wrong with a packet ends the connection that it came on
        logger.exception("a packet from %s", ingress.sender)
        raise ProtocolError(f"a packet from {ingress.sender} cannot be handled: {error!r}") from error
