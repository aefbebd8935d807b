"""Initial placement of a job: homes and first cores of executors, and nodes of sources.

Goal
    Every executor has a core at its home; the cores of the cluster are used; homes are spread evenly.
Heuristic
    Executors and instances whose node is given get it. Each of the other executors in turn goes to the node with the
    most free slots, which a heap finds. The remaining slots go to the executors at home there.
Not done
    Loads, which are not known yet, and traffic between components.

Notes
-----
Elasticutor, section 5, assigns executors to nodes "in a round-robin manner"; the node with the most free
slots gives the same result on equal nodes. By the third erratum an executor always has one core at least.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True)
class PlacementRequest:
    """What one component requests at the start of a job.

    Parameters
    ----------
    name : str
        The component.
    instances : int or None
        Executors of a stateful component or instances of a source; None lets the planner choose.
    stateful : bool
        Whether it owns cores.
    cores : int or None
        Cores of each executor; None takes the free slots at home.
    homes : tuple of (int or None)
        The node of each executor or instance, as far as it is given; None, and those behind the last one, are chosen.
    """

    name: str
    instances: int | None
    stateful: bool
    cores: int | None = None
    homes: tuple[int | None, ...] = ()

    def home(self, index: int) -> int | None:
        """Return the node that is given for an executor or an instance."""
        return self.homes[index] if index < len(self.homes) else None


@dataclass(frozen=True)
class InitialPlacement:
    """Homes and first cores of all components.

    Parameters
    ----------
    homes : dict of str to tuple of int
        Node of each instance of each component.
    cores : dict of str to tuple of dict
        Cores of each executor, by node.
    oversubscribed : bool
        Whether executors share slots.
    """

    homes: dict[str, tuple[int, ...]]
    cores: dict[str, tuple[dict[int, int], ...]]
    oversubscribed: bool


def place(
    requests: Sequence[PlacementRequest],
    free_slots: Sequence[int],
    homes: Mapping[str, Sequence[int]] | None = None,
    nodes: int = 0,
) -> InitialPlacement:
    """Place a job on nodes.

    Parameters
    ----------
    requests : sequence of PlacementRequest
        The components of the job.
    free_slots : sequence of int
        The free slots of each node.
    homes : mapping of str to sequence of int, optional
        The node that is wanted for each executor, and for each instance of a source. A node without a free slot gets no
        executor while others have some.
    nodes : int
        How many nodes there may be later, if that is known; the default number of executors is chosen for these.

    Returns
    -------
    InitialPlacement
        Homes and cores.

    Raises
    ------
    PlanningError
        If there is no node.

    Examples
    --------
    >>> placement = place([PlacementRequest("s", 1, False), PlacementRequest("c", None, True)], free_slots=[2, 2])
    >>> placement.homes, placement.cores
    ({'c': (0, 1), 's': (0,)}, {'c': ({0: 2}, {1: 2})})
    """
    if not free_slots:
        raise PlanningError("there is no node to place the job on: start a worker")
    stateful = [request for request in requests if request.stateful]
    by_slots = _NodesBySlots(free_slots)
    wanted = homes or {}
    chosen_homes: dict[str, tuple[int, ...]] = {}
    places: dict[tuple[str, int], dict[int, int]] = {}
    later = [*free_slots, *[max(free_slots)] * (nodes - len(free_slots))]
    counts = {r.name: r.instances or _default_executors(len(stateful), later) for r in stateful}
    executors = [(request, index) for request in stateful for index in range(counts[request.name])]
    # Those that are given first, so that the others go elsewhere.
    for request, index in sorted(executors, key=lambda one: one[0].home(one[1]) is None):
        node = request.home(index)
        if node is None:
            node = by_slots.freest(next(iter(wanted.get(request.name, ())[index : index + 1]), None))
        by_slots.take(node)
        places[request.name, index] = {node: 1}
    for request in stateful:
        homes_of = (node for i in range(counts[request.name]) for node in places[request.name, i])
        chosen_homes[request.name] = tuple(homes_of)
    free = by_slots.free
    oversubscribed = any(slots < 0 for slots in free)
    oversubscribed |= _more_cores(stateful, chosen_homes, places, free)
    for position, request in enumerate(d for d in requests if not d.stateful):
        usual = tuple((position + i) % len(free) for i in range(request.instances or 1))
        planned = tuple(wanted.get(request.name, ()))
        others = planned if len(planned) == len(usual) else usual
        given = (request.home(i) for i in range(len(usual)))
        chosen_homes[request.name] = tuple(o if g is None else g for g, o in zip(given, others, strict=True))
    cores = {d.name: tuple(places[d.name, i] for i in range(len(chosen_homes[d.name]))) for d in stateful}
    return InitialPlacement(chosen_homes, cores, oversubscribed)


class _NodesBySlots:
    """The nodes in the order of their free slots: of equal ones, that with the fewest executors is first."""

    def __init__(self, free: Sequence[int]) -> None:
        self.free = list(free)
        self._executors = [0] * len(self.free)
        self._heap = [self._entry(node) for node in range(len(self.free))]
        heapq.heapify(self._heap)

    def _entry(self, node: int) -> tuple[int, int, int]:
        return -self.free[node], self._executors[node], node

    def take(self, node: int, executors: int = 1) -> None:
        """Take a slot of a node, which may have none left, for that many more executors."""
        self.free[node] -= 1
        self._executors[node] += executors
        heapq.heappush(self._heap, self._entry(node))

    def freest(self, wanted: int | None = None) -> int:
        """Return the node with the most free slots, or the wanted one if it has some, or no node has."""
        while self._heap[0] != self._entry(node := self._heap[0][2]):
            # A slot was taken since; the node has another entry.
            heapq.heappop(self._heap)
        return wanted if wanted is not None and (self.free[wanted] > 0 or self.free[node] <= 0) else node


def _default_executors(components: int, slots: Sequence[int]) -> int:
    return max(1, min(len(slots), sum(max(s, 0) for s in slots) // components))


def _more_cores(
    stateful: Sequence[PlacementRequest],
    homes: Mapping[str, tuple[int, ...]],
    places: Mapping[tuple[str, int], dict[int, int]],
    free: list[int],
) -> bool:
    """Distribute free slots; return whether a requested number of cores could not be met."""
    unmet, by_slots = False, _NodesBySlots(free)
    free = by_slots.free
    for request in stateful:
        for index, home in enumerate(homes[request.name]):
            held = places[request.name, index]
            for _ in range((request.cores or 1) - 1):
                node = home if by_slots.free[home] > 0 else by_slots.freest()
                unmet |= by_slots.free[node] <= 0
                by_slots.take(node, executors=0)
                held[node] = held.get(node, 0) + 1
    takers = [(d.name, i) for d in stateful if d.cores is None for i in range(len(homes[d.name]))]
    given = True
    while given:
        given = False
        for name, index in takers:
            home = homes[name][index]
            if free[home] > 0:
                free[home] -= 1
                places[name, index][home] += 1
                given = True
    return unmet
