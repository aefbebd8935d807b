"""Commands of a simulated coordinator of checkpoints to the nodes of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.simulator.world import World

P = TypeVar("P")


class CheckpointCommands:
    """Begins checkpoints of a simulated job, and gives them up; each node is told in a fiber of its own.

    Parameters
    ----------
    world : World
        The job.
    """

    def __init__(self, world: World):
        self.world = world

    def begin(self) -> None:
        """Begin a checkpoint; one that is in progress is given up, and nodes may get to know that later."""
        self.give_up()
        number = self.world.checkpoints.begin()
        self.world.record("checkpoint {} begins", number)
        for node in range(self.world.placement.nodes):
            self.world.spawn(f"checkpoint {number} at {node}", self._begin(node, number))

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
        number = self.world.checkpoints.give_up()
        if number is None:
            return
        self.world.record("checkpoint {} is given up", number)
        for node in range(self.world.placement.nodes):
            self.world.spawn(f"checkpoint {number} given up at {node}", self._give_up(node, number))

    def _give_up(self, node: int, number: int) -> FiberSteps:
        yield None
        for home in self._at(self.world.homes, node):
            yield from home.abandon_checkpoint(number)
        for sink in self._at(self.world.sinks, node):
            sink.abandon_checkpoint(number)

    def _at(self, parts: Mapping[ExecutorId, P], node: int) -> list[P]:
        return [part for identity, part in parts.items() if self.world.placement.node_of(identity) == node]
