"""Outages of nodes: they die, hang, or are cut off, and homes give them up on time, late, or by mistake."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_elastic.simulator.executor_fibers import ExecutorFibers
    from dask_elastic.simulator.world import World

MOST_UNHANDLED_STEPS = 40
"""The most steps between the break of a connection and the handling of the loss."""


class Outages:
    """Faults of the nodes of a simulated job.

    Only *guests* are lost: nodes that host nothing but remote tasks.

    Parameters
    ----------
    world : World
        The job.

    Attributes
    ----------
    deaths, hangs, given_up : int
        How often a node died, how often one stopped for a while, and how often a home node gave up a guest.
    """

    def __init__(self, world: World):
        self.world = world
        self.deaths = 0
        self.hangs = 0
        self.given_up = 0
        self._dead: set[int] = set()
        # Pairs of a home node and a guest: those that were given up, and those whose loss is not handled yet.
        self._lost: set[tuple[int, int]] = set()
        self._unhandled: set[tuple[int, int]] = set()

    @property
    def home_nodes(self) -> list[int]:
        """The nodes on which executors have their homes."""
        return sorted({home.executor.home for home in self.world.homes.values()})

    @property
    def guests(self) -> list[int]:
        """Nodes that may be lost."""
        placement = self.world.placement
        hosting = self.world.moves.nodes()
        return [node for node in range(placement.nodes) if node not in hosting]

    def begin(self, node: int) -> None:
        """Note that an outage of a node begins, whose end is called once."""
        self.world.outages[node] += 1

    def is_sound(self, node: int) -> bool:
        """Whether no outage of a node is in progress, so that it may become a home."""
        return not self.world.outages[node]

    def can_fail(self, node: int) -> bool:
        """Whether an outage of a node may begin: it is not dead, and no home has given it up. It may hang already."""
        return node not in self._dead and all(guest != node for _, guest in self._lost)

    def die(self, node: int) -> None:
        """Lose a node and its state; its last messages may be lost with it."""
        self.world.record("node {} dies", node)
        self.deaths += 1
        self._dead.add(node)
        self.world.schedule.kill(node)
        self.world.network.kill(node)
        for key in [key for key in self.world.remotes if key[0] == node]:
            del self.world.remotes[key]

    def hang(self, node: int) -> None:
        """Stop a node."""
        self.world.record("node {} hangs", node)
        self.hangs += 1
        self.world.schedule.stopped.add(node)

    def wake(self, node: int) -> None:
        """Resume a stopped node, as if no time had passed."""
        self.world.record("node {} resumes", node)
        self.world.schedule.stopped.discard(node)

    def desert(self, node: int) -> None:
        """Let a node end its remote tasks by itself, as if it had lost the connection to their homes."""
        self.world.record("node {} ends its remote tasks", node)
        for (guest, _), remote in self.world.remotes.items():
            if guest == node:
                remote.close()

    def give_up(self, home_node: int, node: int) -> None:
        """Let all homes on a node treat another node as lost, whether it has a fault or not.

        In half of the cases, the homes handle the loss at once, and the broken connection still delivers its packets in
        flight. In the other half, as on a Dask worker, they handle it some steps after the connection broke, and no
        packet is delivered in between.
        """
        if (home_node, node) in self._lost:
            return
        self.world.record("node {} gives up node {}", home_node, node)
        self.given_up += 1
        self._lost.add((home_node, node))
        self._unhandled.add((home_node, node))
        schedule = self.world.schedule
        if schedule.draw() < 0.5:
            self.world.network.reset(home_node, node)
            self._handle_loss(home_node, node)
        else:
            self.world.network.disconnect(home_node, node)
            after = int(MOST_UNHANDLED_STEPS * schedule.draw())
            schedule.at(schedule.steps + after, partial(self._handle_loss, home_node, node))

    def _handle_loss(self, home_node: int, node: int) -> None:
        if (home_node, node) not in self._unhandled:
            return
        self._unhandled.discard((home_node, node))
        self.world.given_up.add((home_node, node))
        for home in self._homes_on(home_node):
            self.world.record("{} handles the loss of node {}", home.identity, node)
            home.driver.node_left(node, died=False)
        self.world.moves.lost(home_node, node)

    def _homes_on(self, home_node: int) -> list[ExecutorFibers]:
        return [home for home in self.world.homes.values() if home.executor.home == home_node]

    def end(self, node: int) -> None:
        """Let all homes that gave up a node use it again; a dead node starts without state."""
        self.wake(node)
        if node in self._dead:
            for home_node in self.home_nodes:
                self.give_up(home_node, node)
            self._dead.discard(node)
            self.world.network.revive(node)
        for home_node in sorted({home_node for home_node, guest in self._lost if guest == node}):
            self._handle_loss(home_node, node)
            self.world.network.connect(home_node, node)
            for home in self._homes_on(home_node):
                home.driver.node_returned(node)
        self._lost = {(home_node, guest) for home_node, guest in self._lost if guest != node}
        self.world.given_up -= {pair for pair in self.world.given_up if pair[1] == node}
        self.world.outages[node] -= 1
