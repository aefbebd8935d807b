"""Ways between nodes: one FIFO per pair; those of different pairs overtake each other at random."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dask_elastic.simulator.fiber import Steps
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ToHome, ToRemote


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch for an instance on the node."""

    target: ExecutorId
    origin: ExecutorId
    batch: Batch
    nbytes: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit that goes back to an upstream instance on the node."""

    target: ExecutorId
    origin: ExecutorId
    nbytes: int


@dataclass(frozen=True, slots=True)
class End:
    """An upstream instance has sent its last batch."""

    target: ExecutorId
    origin: ExecutorId


@dataclass(frozen=True, slots=True)
class Message:
    """A message between a home and its remote tasks; `sender` is the node that it comes from."""

    executor: ExecutorId
    sender: int
    message: ToRemote | ToHome


Packet: TypeAlias = Rows | Credit | End | Message
Receive: TypeAlias = Callable[[int, Packet], Steps]


class Network:
    """All channels.

    Parameters
    ----------
    schedule : Schedule
        Runs the receiving end of each channel as a fiber.
    receive : callable
        ``receive(node, packet)``: what a node does with a packet.
    """

    def __init__(self, schedule: Schedule, receive: Receive):
        self._schedule = schedule
        self._receive = receive
        self._channels: dict[tuple[int, int], Channel] = {}

    def send(self, source: int, target: int, packet: Packet) -> None:
        """Put a packet on its way; never blocks, what bounds the bytes is credit."""
        channel = self._channels.get((source, target))
        if channel is None:
            channel = self._channels[source, target] = Channel(f"channel {source}->{target}")
            self._schedule.spawn(channel.name, self._run(channel, target))
        channel.put(packet)

    def _run(self, channel: Channel, node: int) -> Steps:
        while True:
            yield channel.has_packets
            yield from self._receive(node, channel.take())


class Channel:
    """The FIFO from one node to another; its packets are numbered, so that one out of order is found."""

    def __init__(self, name: str):
        self.name = name
        self._packets: deque[tuple[int, Packet]] = deque()
        self._put = 0
        self._taken = 0

    def has_packets(self) -> bool:
        """Tell whether something is on its way."""
        return bool(self._packets)

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
