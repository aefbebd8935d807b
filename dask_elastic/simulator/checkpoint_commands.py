"""Commands of a simulated coordinator of checkpoints to the nodes of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from dask_elastic.simulator.checkpoints import SimulatedCheckpoints
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.simulator.world import World

P = TypeVar("P")


MOST_LATE_STEPS = 60
"""A sink learns up to so many steps of its fiber later that a checkpoint is complete, often during the next one."""


class CheckpointCommands:
    """Begins checkpoints of a simulated job, and gives them up; each node is told in a fiber of its own.

    Parameters
    ----------
    world : World
        The job.
    before_move : callable, optional
        Gives up the checkpoint in progress, if there is one, because a home is about to move.
    """

    def __init__(self, world: World, before_move: Callable[[], None] | None = None):
        self.world = world
        world.moves.begins = world.groups.begins = before_move or self.give_up
        world.groups.is_quiet = self._is_quiet
        self._telling = 0

    @property
    def _checkpoints(self) -> SimulatedCheckpoints:
        found = self.world.checkpoints
        assert isinstance(found, SimulatedCheckpoints), "another coordinator numbers the checkpoints of this job"
        return found

    def begin(self) -> None:
        """Begin a checkpoint, unless a home or key groups move; one in progress is given up, which nodes learn later.

        The barriers of some inputs of a moving executor would reach its old home, those of the others its new one.
        """
        if self.world.is_bound:
            return
        self.give_up()
        self.tell_begun(self._checkpoints.begin())

    def tell_begun(self, number: int) -> None:
        """Tell all nodes that a checkpoint begins."""
        self.world.record("checkpoint {} begins", number)
        for node in range(self.world.placement.nodes):
            self.world.spawn(f"checkpoint {number} at {node}", self._begin(node, number), node)

    def _begin(self, node: int, number: int) -> FiberSteps:
        yield None
        for sink in self._at(self.world.sinks, node):
            sink.begin_checkpoint(number)
        for home in self._at(self.world.homes, node):
            yield from home.begin_checkpoint(number)
        for source in self._at(self.world.sources, node):
            yield None
            source.begin_checkpoint(number)

    def give_up(self) -> None:
        """Give up the checkpoint in progress, if there is one."""
        number = self._checkpoints.give_up()
        if number is not None:
            self.tell_given_up(number)

    def tell_given_up(self, number: int) -> None:
        """Tell all nodes that a checkpoint is given up."""
        self.world.record("checkpoint {} is given up", number)
        self._telling += self.world.placement.nodes
        for node in range(self.world.placement.nodes):
            self.world.spawn(f"checkpoint {number} given up at {node}", self._give_up(node, number), node)

    def _is_quiet(self) -> bool:
        """Return whether all nodes have given up the checkpoint that was given up last, and hold nothing for it."""
        sinks, homes = self.world.sinks.values(), self.world.homes.values()
        return not self._telling and all(sink.is_quiet for sink in sinks) and all(home.is_quiet for home in homes)

    def _give_up(self, node: int, number: int) -> FiberSteps:
        yield None
        for home in self._at(self.world.homes, node):
            yield from home.abandon_checkpoint(number)
        for sink in self._at(self.world.sinks, node):
            sink.abandon_checkpoint(number)
        self._telling -= 1

    def tell_complete(self, number: int) -> None:
        """Tell all nodes that a checkpoint is complete: sinks commit."""
        self.world.record("checkpoint {} is complete", number)
        for node in range(self.world.placement.nodes):
            self.world.spawn(f"checkpoint {number} complete at {node}", self._complete(node, number), node)

    def _complete(self, node: int, number: int) -> FiberSteps:
        for _ in range(1 + int(MOST_LATE_STEPS * self.world.schedule.draw())):
            yield None
        for sink in self._at(self.world.sinks, node):
            sink.complete_checkpoint(number)

    def _at(self, parts: Mapping[ExecutorId, P], node: int) -> list[P]:
        return [part for identity, part in parts.items() if self.world.placement.node_of(identity) == node]
