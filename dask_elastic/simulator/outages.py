"""Outages of nodes: they die, hang, or are cut off, and homes give them up on time, late, or by mistake."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_elastic.simulator.executor_fibers import ExecutorFibers
    from dask_elastic.simulator.world import World

MOST_UNHANDLED_STEPS = 40
"""So many steps may pass between the break of a connection and the handling of the loss."""


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
        How often a node died, how often one stopped for a while, and how often a node of homes gave up a guest.
    """

    def __init__(self, world: World):
        self.world = world
        self.deaths = 0
        self.hangs = 0
        self.given_up = 0
        self._down: set[int] = set()
        self._without: set[tuple[int, int]] = set()
        self._unhandled: set[tuple[int, int]] = set()

    @property
    def home_nodes(self) -> list[int]:
        """Nodes that are home of executors."""
        return sorted({home.executor.home for home in self.world.homes.values()})

    @property
    def guests(self) -> list[int]:
        """Nodes that may be lost."""
        placement = self.world.placement
        hosting = {node for homes in placement.homes.values() for node in homes}
        return [node for node in range(placement.nodes) if node not in hosting]

    def is_well(self, node: int) -> bool:
        """Whether a node has no fault, and no home has given it up."""
        return node not in self._down and all(guest != node for _, guest in self._without)

    def die(self, node: int) -> None:
        """Lose a node and its state; its last messages may be lost with it."""
        self.world.say("node {} dies", node)
        self.deaths += 1
        self._down.add(node)
        self.world.schedule.kill(node)
        self.world.network.kill(node)
        for key in [key for key in self.world.remotes if key[0] == node]:
            del self.world.remotes[key]

    def hang(self, node: int) -> None:
        """Stop a node."""
        self.world.say("node {} hangs", node)
        self.hangs += 1
        self.world.schedule.stopped.add(node)

    def wake(self, node: int) -> None:
        """Resume a stopped node, as if no time had passed."""
        self.world.say("node {} goes on", node)
        self.world.schedule.stopped.discard(node)

    def desert(self, node: int) -> None:
        """Let a node end its remote tasks by itself, as if it had lost the connection to their homes."""
        self.world.say("node {} deserts", node)
        for (guest, _), remote in self.world.remotes.items():
            if guest == node:
                remote.close()

    def give_up(self, home_node: int, node: int) -> None:
        """Let all homes on a node treat another node as lost, whether it has a fault or not.

        Either at once, and then the broken connection still delivers its packets in flight; or a while after the
        connection broke, as on a Dask worker, and then no packet is delivered in between.
        """
        if (home_node, node) in self._without:
            return
        self.world.say("node {} gives node {} up", home_node, node)
        self.given_up += 1
        self._without.add((home_node, node))
        self._unhandled.add((home_node, node))
        schedule = self.world.schedule
        if schedule.draw() < 0.5:
            self.world.network.part(home_node, node)
            self._handle_loss(home_node, node)
        else:
            self.world.network.disconnect(home_node, node)
            after = int(MOST_UNHANDLED_STEPS * schedule.draw())
            schedule.at(schedule.steps + after, partial(self._handle_loss, home_node, node))

    def _handle_loss(self, home_node: int, node: int) -> None:
        if (home_node, node) not in self._unhandled:
            return
        self._unhandled.discard((home_node, node))
        for home in self._homes_on(home_node):
            self.world.say("{} handles the loss of node {}", home.identity, node)
            home.driver.node_left(node, died=False)

    def _homes_on(self, home_node: int) -> list[ExecutorFibers]:
        return [home for home in self.world.homes.values() if home.executor.home == home_node]

    def end(self, node: int) -> None:
        """Let all homes that gave up a node use it again; a dead node starts without state."""
        self.wake(node)
        if node in self._down:
            for home_node in self.home_nodes:
                self.give_up(home_node, node)
            self._down.discard(node)
            self.world.network.revive(node)
        for home_node in sorted({home_node for home_node, guest in self._without if guest == node}):
            self._handle_loss(home_node, node)
            self.world.network.connect(home_node, node)
            for home in self._homes_on(home_node):
                home.driver.node_returned(node)
        self._without = {(home_node, guest) for home_node, guest in self._without if guest != node}
