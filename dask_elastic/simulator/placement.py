"""Placement of a simulated job: nodes, homes, and cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dask_elastic.planning.initial import PlacementRequest, place
from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import Compute, SinkOperator, SourceOperator
from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True)
class Placement:
    """Where the instances of a simulated job are.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    homes : dict of str to tuple of int
        Node of each instance of each source and each stateful component.
    cores : dict of str to tuple of dict
        Cores of each executor at the start, by node.
    """

    nodes: int
    homes: dict[str, tuple[int, ...]]
    cores: dict[str, tuple[dict[int, int], ...]]

    @classmethod
    def derived(cls, components: Iterable[Component], slots: Sequence[int], executors: int | None = None) -> Placement:
        """Place components as the scheduler would place a job.

        Parameters
        ----------
        components : iterable of Component
            What to place.
        slots : sequence of int
            Slots of each node.
        executors : int, optional
            Executors of every stateful component; by default as the operators say.
        """
        placed = place([d for c in components if (d := _demand(c, executors))], slots)
        return cls(len(slots), placed.homes, placed.cores)

    def instances(self, component: str) -> list[ExecutorId]:
        """Return all instances of a source or a stateful component."""
        return [ExecutorId(component, index) for index in range(len(self.homes[component]))]

    def node_of(self, instance: ExecutorId) -> int:
        """Return the home of an instance; a sink's instances are numbered by node."""
        homes = self.homes.get(instance.component)
        return instance.index if homes is None else homes[instance.index]


def _demand(component: Component, executors: int | None) -> PlacementRequest | None:
    match component.operator:
        case Compute() as operator:
            return PlacementRequest(component.name, executors or operator.executors, True)
        case SourceOperator() as operator:
            return PlacementRequest(component.name, operator.source.parallel, False)
        case SinkOperator():
            return None
