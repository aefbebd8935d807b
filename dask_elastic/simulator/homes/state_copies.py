"""Copies of state that simulated homes send before executors move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from dask_elastic.executor.homes.incoming_copy import IncomingCopy
from dask_elastic.executor.homes.outgoing_copy import CopiedRows, OutgoingCopy
from dask_elastic.migration.copy_rounds import CopyRounds
from dask_elastic.migration.home_move import HomeMove
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.homes.packets import Copied, CopyPacket, Dropped, Taken
from dask_elastic.simulator.instances import JobInstances, make_store
from dask_elastic.vocab.identity import ExecutorId

ROWS_AT_ONCE = 3
"""Rows of a portion: simulated executors have few keys."""


class Send(Protocol):
    """Sends a packet from a node to another one."""

    def __call__(self, source: int, node: int, packet: CopyPacket) -> None:
        """Send it."""
        ...


class StateCopies:
    """The copy that is sent, and those that nodes have got, one for each executor.

    Parameters
    ----------
    world : JobInstances
        The job.
    send : callable
        Sends packets.

    Attributes
    ----------
    happened : Counter of str
        How many portions were sent in the first round, and in later ones.
    """

    def __init__(self, world: JobInstances, send: Send):
        self.world = world
        self.happened: Counter[str] = Counter()
        self._send = send
        self._number = 0
        self._outgoing: OutgoingCopy | None = None
        self._last: tuple[CopiedRows, ...] = ()
        self._taken = 0
        self._incoming: dict[tuple[int, ExecutorId], IncomingCopy] = {}

    # the old home

    def copy(self, move: HomeMove, copied: Callable[[], FiberSteps]) -> FiberSteps:
        """Send the state in rounds, each portion when the one before is installed; then call `copied`."""
        store = self.world.homes[move.executor].executor.store
        self._number += 1
        self._taken, self._last = 0, ()
        outgoing = OutgoingCopy(self._number, move.target, move.executor.component, store, ROWS_AT_ONCE)
        self._outgoing, rounds, goes_on = outgoing, CopyRounds(small=0), True
        while goes_on:
            before = outgoing.nbytes
            for rows in outgoing.round():
                self.happened["copied first" if rounds.count == 0 else "copied again"] += 1
                self._send_portion(move, outgoing.portions - 1, rows)
                yield lambda: move.has_ended or self._taken == outgoing.portions
                if move.has_ended:
                    return
            goes_on = rounds.goes_on(outgoing.nbytes - before)
            yield None
        if not move.has_ended:
            yield from copied()

    def _send_portion(self, move: HomeMove, position: int, rows: tuple[CopiedRows, ...]) -> None:
        self._send(move.source, move.target, Copied(move.executor, self._number, position, rows))

    def finish(self, move: HomeMove) -> None:
        """Send what is left of the state of an executor that is drained, but for the last portion."""
        assert self._outgoing is not None
        for rows in self._outgoing.rest():
            self.happened["copied last"] += 1
            if self._last:
                self._send_portion(move, self._outgoing.portions - 2, self._last)
            self._last = rows

    def last(self) -> tuple[OutgoingCopy, int, tuple[CopiedRows, ...]]:
        """Return the copy, how many of its portions were sent, and the last one; see `HomeDriver.handover`."""
        assert self._outgoing is not None
        return self._outgoing, self._outgoing.portions - bool(self._last), self._last

    def taken(self, packet: Taken) -> None:
        """Note how much the other home has."""
        if packet.number == self._number:
            self._taken = packet.portions

    def cancel(self, move: HomeMove) -> None:
        """End the copy, since the executor stays."""
        if self._outgoing is not None:
            self._outgoing.end()
            self._outgoing = None
            self._send(move.source, move.target, Dropped(move.executor, self._number))

    # the new home

    def install(self, node: int, sender: int, packet: Copied) -> None:
        """Install a portion at a node; the first one of a copy replaces earlier copies."""
        key = node, packet.executor
        if packet.position == 0:
            component = self.world.components[packet.executor.component]
            self._incoming[key] = IncomingCopy(packet.number, component.name, make_store(self.world, component))
        found = self._incoming.get(key)
        if found is None:
            # The copy was dropped: workers refuse the portion.
            return
        found.install(packet.number, packet.position, packet.rows)
        self._send(node, sender, Taken(packet.executor, packet.number, found.portions))

    def drop(self, node: int, packet: Dropped) -> None:
        """Forget a copy at a node."""
        found = self._incoming.get((node, packet.executor))
        if found is not None and found.number == packet.number:
            del self._incoming[node, packet.executor]

    def arrived(self, node: int, executor: ExecutorId) -> IncomingCopy:
        """Return the copy of an executor that has come to a node."""
        component = self.world.components[executor.component]
        # There is none of an executor that has no state yet.
        empty = IncomingCopy(self._number, component.name, make_store(self.world, component))
        return self._incoming.pop((node, executor), empty)
