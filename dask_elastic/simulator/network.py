"""Channels between simulated nodes: one FIFO per pair; packets of different pairs overtake each other at random.

A broken connection may still deliver its packets in flight while the next connection delivers new ones. Messages
between homes and remote tasks may be delivered a second time, later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dask_elastic.executor.drivers.executor_driver import ControlRecord
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.groups.packets import GroupPacket
from dask_elastic.simulator.homes.packets import HomePacket
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import Stamp, ToHome, ToRemote

Item: TypeAlias = tuple[Batch, int] | ControlRecord
"""What an upstream instance sends: a batch with its bytes of credit, or a control record."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch or a control record of an upstream instance for an instance on the node."""

    target: ExecutorId
    origin: ExecutorId
    item: Item


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit for an upstream instance on the node."""

    target: ExecutorId
    origin: ExecutorId
    nbytes: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message between a home and its remote tasks; `sender` is the sending node."""

    executor: ExecutorId
    sender: int
    stamp: Stamp
    message: ToRemote | ToHome


Packet: TypeAlias = Sent | Credit | Message | HomePacket | GroupPacket
Receive: TypeAlias = Callable[[int, Packet], FiberSteps]


class Network:
    """All channels.

    Parameters
    ----------
    schedule : Schedule
        Runs the receiving end of each channel as a fiber of the receiving node.
    receive : callable
        ``receive(node, packet)`` returns the steps in which a node handles a packet.
    repeats : float
        The share of messages between homes and remote tasks that are delivered twice.
    """

    def __init__(self, schedule: Schedule, receive: Receive, repeats: float = 0.0):
        self._schedule = schedule
        self._receive = receive
        self._repeats = repeats
        self._channels: dict[tuple[int, int], Channel] = {}
        self._dead: set[int] = set()
        self._disconnected: set[tuple[int, int]] = set()

    def send(self, source: int, target: int, packet: Packet) -> None:
        """Send a packet; never blocks, since credit bounds the bytes. Packets to a dead node are dropped."""
        if target in self._dead or (source, target) in self._disconnected:
            return
        channel = self._channels.get((source, target))
        if channel is None:
            channel = self._channels[source, target] = Channel(f"channel {source}->{target}")
            self._schedule.spawn(channel.name, self._run(channel, target), target)
        channel.put(packet)

    def _run(self, channel: Channel, node: int) -> FiberSteps:
        repeats: deque[Packet] = deque()
        while True:
            yield channel.is_ready
            if not channel.has_packets():
                return
            packet = channel.take()
            yield from self._receive(node, packet)
            if self._repeats and isinstance(packet, Message) and self._schedule.draw() < self._repeats:
                repeats.append(packet)
            if repeats and self._schedule.draw() < 0.5:
                yield None
                yield from self._receive(node, repeats.popleft())

    def is_connected(self, source: int, target: int) -> bool:
        """Whether a node can send to another; a node that died counts as connected until it is disconnected."""
        return (source, target) not in self._disconnected

    def disconnect(self, one: int, other: int) -> None:
        """Break the connection of two nodes until they `connect`; packets in flight are lost."""
        self.reset(one, other, lost=True)
        self._disconnected |= {(one, other), (other, one)}

    def connect(self, one: int, other: int) -> None:
        """Let two nodes send each other packets again."""
        self._disconnected -= {(one, other), (other, one)}

    def reset(self, one: int, other: int, lost: bool = False) -> None:
        """Break the connection of two nodes; the next packet uses a new one. Packets in flight arrive unless `lost`."""
        for pair in ((one, other), (other, one)):
            channel = self._channels.pop(pair, None)
            if channel is not None:
                channel.closed = True
                if lost:
                    channel.lose_all()

    def kill(self, node: int) -> None:
        """Lose a node, the packets in flight to it, and some of those that it sent last."""
        self._dead.add(node)
        for source, target in [pair for pair in self._channels if node in pair]:
            channel = self._channels.pop((source, target))
            channel.closed = True
            if source == node:
                channel.lose(self._schedule.draw())

    def revive(self, node: int) -> None:
        """Start a node again."""
        self._dead.discard(node)


class Channel:
    """The FIFO from one node to another; packets are numbered, so that one out of order is found."""

    def __init__(self, name: str):
        self.name = name
        self.closed = False
        self._packets: deque[tuple[int, Packet]] = deque()
        self._put = 0
        self._taken = 0

    def has_packets(self) -> bool:
        """Return whether packets are in flight."""
        return bool(self._packets)

    def is_ready(self) -> bool:
        """Return whether the receiver may run: packets are in flight, or the channel is closed."""
        return bool(self._packets) or self.closed

    def lose(self, share: float) -> None:
        """Lose a share of the packets, the last ones."""
        for _ in range(int(share * (len(self._packets) + 1))):
            self._packets.pop()

    def lose_all(self) -> None:
        """Lose all packets in flight."""
        self._packets.clear()

    def put(self, packet: Packet) -> None:
        """Append a packet."""
        self._packets.append((self._put, packet))
        self._put += 1

    def take(self) -> Packet:
        """Return the first packet.

        Raises
        ------
        ProtocolError
            If another packet was sent before it.
        """
        number, packet = self._packets.popleft()
        if number != self._taken:
            raise ProtocolError(f"{self.name} delivered packet {number} where {self._taken} was due")
        self._taken += 1
        return packet
