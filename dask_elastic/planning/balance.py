"""Balancing the shards of one executor over its tasks.

Goal
    The busiest task is at most `threshold` times as busy as the mean, after few moves. Where one hot shard alone
    exceeds that, it keeps its task to itself, and the goal holds among the other tasks.
Heuristic
    One shard at a time moves from the most to the least loaded task: the shard whose move gains most, which is by how
    much it lowers the peak of the two, less what it costs. If that gains nothing, because it costs more to another
    node, the least loaded task on the same node gets a shard. If no move gains anything, none is made.
Not done
    Swaps of shards: shards are many and small, so single moves suffice.

Notes
-----
Elasticutor, section 3.1, with the fourth erratum: "the reassignment that reduces δ most" freezes on tied maxima, so the
shard is chosen that minimises the larger of the two loads after the move, and the search in a task stops when that is
not below its load. The paper and the erratum do not state what happens to the other tasks then; here they are
balanced further, since otherwise a single hot key would prevent any balancing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_array, as_floats, is_number

Nodes: TypeAlias = Mapping[int, Hashable] | Sequence[Hashable] | NDArray[Any]

_SCALE_BITS = 48


@dataclass(frozen=True, slots=True)
class ShardMove:
    """A move of one shard to another task.

    Parameters
    ----------
    shard : int
        The shard.
    source : int
        The task that owns it now.
    target : int
        The task that owns it afterwards.

    Raises
    ------
    PlanningError
        If the shard is negative, or source and target are one task.

    Examples
    --------
    >>> ShardMove(shard=7, source=0, target=2).target
    2
    """

    shard: int
    source: int
    target: int

    def __post_init__(self) -> None:
        if self.shard < 0 or self.source == self.target:
            raise PlanningError(f"{self} is no move: give a shard of 0 or more, and two tasks.")


def balance(
    load: ArrayLike,
    owner: ArrayLike,
    tasks: Sequence[int],
    threshold: float = 1.2,
    node_of_task: Nodes | None = None,
    cost: ArrayLike = 0.0,
    cost_across: ArrayLike | None = None,
) -> list[ShardMove]:
    """Plan the shard moves that even out the loads of an executor's tasks.

    While the most loaded task has more than `threshold` times the mean load, one shard goes from it to the least loaded
    task: the shard that makes the larger of the two loads plus the cost of its move smallest. Where that is not below
    the present load of the most loaded task, and costs between nodes differ, it goes to the least loaded task on the
    same node. Where that gains nothing either, no move is worth it: the task is set aside, and the other tasks are
    balanced around their own mean.

    Parameters
    ----------
    load : array of float
        The load of each shard, in any unit.
    owner : array of int
        The task that owns each shard.
    tasks : sequence of int
        The ids of the executor's tasks, those without a shard too. Their order does not matter.
    threshold : float
        The allowed load of the most loaded task over the mean, at least 1; tasks that are set aside do not count.
    node_of_task : mapping or array, optional
        The node of each task, by task id. Among moves of equal gain, one within a node wins.
    cost : float or array of float
        What the move of each shard, or of any, costs in the unit of load. A move gains the amount by which the larger
        of the two loads falls; if that is not more than the cost, it is not made.
    cost_across : float or array of float, optional
        What it costs between nodes, if that is something else.

    Returns
    -------
    list of ShardMove
        The moves in the order in which they were found, each shard at most once. Empty if no move helps.

    Raises
    ------
    PlanningError
        If a load or cost is negative or not finite, the lengths differ, an owner is no task, a task is named twice or
        has no node, or the threshold is below 1.

    Notes
    -----
    Elasticutor, section 3.1, moves the shard that reduces the imbalance most. No single move reduces it when two tasks
    share the maximum, as when an empty task joins two equal ones, so the paper's rule would stop there; minimising the
    larger of the two loads does not.

    Each move lowers the sorted loads lexicographically, so the search ends. The least load never falls and tasks that
    are set aside keep their load, so no later move can relieve them, unless the least loaded task is then on a node to
    which moves cost less; if these costs differ, the search is repeated until it finds no move. So planning again over
    the result finds none.
    Loads are taken as whole multiples of 2**-48 of the largest one (with fewer digits above 16,384 shards): sums are
    then exact, and ties are the same on every machine. Further ties go to the lowest shard, then to the lowest task.

    Examples
    --------
    >>> balance([2, 2, 2, 2, 2, 2], owner=[0, 0, 0, 1, 1, 1], tasks=[0, 1, 7])
    [ShardMove(shard=0, source=0, target=7), ShardMove(shard=3, source=1, target=7)]
    >>> balance([1, 1, 1, 1], owner=[0, 0, 1, 1], tasks=[0, 1])
    []

    A shard with nine tenths of the load keeps its task to itself, and the other tasks share the rest:

    >>> balance([2, 2, 2, 54], owner=[1, 1, 0, 0], tasks=[0, 1, 2, 3])
    [ShardMove(shard=2, source=0, target=2), ShardMove(shard=0, source=1, target=3)]
    """
    loads, owners = _checked(load, owner)
    ids = _checked_tasks(tasks)
    places = _places(owners, ids)
    nodes = _nodes(ids, node_of_task)
    if not (is_number(threshold) and threshold >= 1):
        raise PlanningError(f"threshold is {threshold!r}: the greatest load is never below the mean, give 1 or more.")
    within = _costs("cost", cost, len(loads))
    across = within if cost_across is None else _costs("cost_across", cost_across, len(loads))
    whole = _whole(loads, within, across)
    tables = _Tables(whole[0], (whole[1], whole[2]), places, len(ids), nodes)
    final: dict[int, int] = {}
    while _search(tables, float(threshold), final) and tables.costs_by_node:
        tables.take_back()
    first = {shard: int(places[shard]) for shard in final}
    return [ShardMove(shard, ids[first[shard]], ids[place]) for shard, place in final.items() if place != first[shard]]


def _search(tables: _Tables, threshold: float, final: dict[int, int]) -> bool:
    """Note the last place of every shard that moves, in the order of their first moves; returns whether any does."""
    moved = False
    while len(tables.totals) > 1:
        # Moves stay among the remaining tasks, so their mean is constant.
        floor = threshold * sum(tables.totals) / len(tables.totals)
        while (peak := max(tables.totals)) > floor:
            choice = tables.best_move(peak)
            if choice is None:
                tables.set_aside(peak)
                break
            shard, source, target = choice
            tables.move(shard, source, target)
            final[shard] = tables.places[target]
            moved = True
        else:
            break
    return moved


class _Tables:
    """The loads of tasks and shards during the search.

    Tasks have places 0, 1, … in the order of their ids; `places`, `totals` and the nodes are those of the tasks that
    have not been set aside; sources and targets are positions among them.
    """

    def __init__(
        self,
        whole: NDArray[np.int64],
        costs: tuple[NDArray[np.int64], NDArray[np.int64]],
        places: NDArray[np.int64],
        tasks: int,
        nodes: list[Hashable],
    ):
        self._whole = whole
        # Within a node, and between nodes.
        self._costs = costs
        self._same_cost = [_same(some) for some in costs]
        self.costs_by_node = not np.array_equal(*costs)
        self._place_of = places.copy()
        # What `_cheapest` has found for each task, and for which loads: tied tasks are searched again and again.
        self._cheapest_of: dict[int, tuple[tuple[int, int, bool], tuple[int, int] | None]] = {}
        self._aside: list[tuple[int, int, Hashable]] = []
        self._nodes = nodes
        self._many_nodes = len(set(nodes)) > 1
        # By task, then by load, then by number: a task's shards are one slice.
        self._order = np.lexsort((whole, places))
        self._weights = whole[self._order]
        bounds = np.searchsorted(places[self._order], np.arange(tasks + 1))
        self._bounds: list[int] = bounds.tolist()
        self.places = list(range(tasks))
        self.totals: list[int] = np.diff(np.concatenate([[0], np.cumsum(self._weights)])[bounds]).tolist()
        self._shards: dict[int, list[tuple[int, int]]] = {}

    def set_aside(self, total: int) -> None:
        """Exclude the tasks with that load from the rest of the search."""
        every = list(zip(self.places, self.totals, self._nodes, strict=True))
        self._aside += [one for one in every if one[1] == total]
        self._keep([one for one in every if one[1] != total])

    def take_back(self) -> None:
        """Include all tasks that have been set aside."""
        every, self._aside = [*zip(self.places, self.totals, self._nodes, strict=True), *self._aside], []
        self._keep(sorted(every, key=lambda task: task[0]))

    def _keep(self, tasks: list[tuple[int, int, Hashable]]) -> None:
        self.places = [place for place, _, _ in tasks]
        self.totals = [total for _, total, _ in tasks]
        self._nodes = [node for _, _, node in tasks]

    def _shards_of(self, position: int) -> list[tuple[int, int]]:
        """Return the loads and numbers of a task's shards, by load; built on first use, since few tasks are used."""
        place = self.places[position]
        found = self._shards.get(place)
        if found is None:
            some = slice(self._bounds[place], self._bounds[place + 1])
            found = list(zip(self._weights[some].tolist(), self._order[some].tolist(), strict=True))
            # A shard without load never lowers a peak.
            del found[: bisect_left(found, (1, -1))]
            self._shards[place] = found
        return found

    def best_move(self, peak: int) -> tuple[int, int, int] | None:
        """Return the shard, source and target of the best move, None if no move gains anything."""
        least = min(self.totals)
        targets = self._positions_of(least) if self._many_nodes else [self.totals.index(least)]
        best: tuple[int, bool, int, int, int] | None = None
        for source in self._positions_of(peak):
            target, across = targets[0], False
            if self._many_nodes:
                node = self._nodes[source]
                target = next((one for one in targets if self._nodes[one] == node), target)
                across = bool(self._nodes[target] != node)
            found = self._best_shard(source, peak, least, across)
            if found is None:
                continue
            choice = (found[0], across, found[1], source, target)
            if best is None or choice < best:
                best = choice
        if best is None and self.costs_by_node and self._many_nodes:
            return self._best_within(peak)
        return None if best is None else best[2:]

    def _best_within(self, peak: int) -> tuple[int, int, int] | None:
        """Return the best move within a node, where those to the least loaded task cost more than they gain."""
        best: tuple[int, int, int, int] | None = None
        for source in self._positions_of(peak):
            beside = [one for one, node in enumerate(self._nodes) if node == self._nodes[source] and one != source]
            if not beside:
                continue
            target = min(beside, key=self.totals.__getitem__)
            found = self._best_shard(source, peak, self.totals[target], across=False)
            if found is not None:
                choice = (*found, source, target)
                best = choice if best is None else min(best, choice)
        return None if best is None else best[1:]

    def _positions_of(self, total: int) -> list[int]:
        """Return the positions of all tasks with that load; ties are rare, so the first is sought by itself."""
        first = self.totals.index(total)
        found = [first]
        for _ in range(self.totals.count(total) - 1):
            found.append(self.totals.index(total, found[-1] + 1))
        return found

    def _best_shard(self, source: int, peak: int, least: int, across: bool) -> tuple[int, int] | None:
        """Return the larger load after the best move plus the cost of the move, and its shard."""
        cost = self._same_cost[across]
        if cost is None:
            place, asked = self.places[source], (peak, least, across)
            known = self._cheapest_of.get(place)
            if known is None or known[0] != asked:
                known = self._cheapest_of[place] = asked, self._cheapest(source, peak, least, self._costs[across])
            return known[1]
        # Only the two shards around the middle matter.
        shards = self._shards_of(source)
        above = bisect_left(shards, ((peak - least + 1) // 2, -1))
        best: tuple[int, int] | None = None
        if above < len(shards):
            # The target then has the larger load.
            weight, shard = shards[above]
            best = least + weight + cost, shard
        if above > 0:
            weight = shards[above - 1][0]
            below = peak - weight + cost, shards[bisect_left(shards, (weight, -1))][1]
            best = below if best is None or below < best else best
        return best if best is not None and best[0] < peak else None

    def _cheapest(self, source: int, peak: int, least: int, costs: NDArray[np.int64]) -> tuple[int, int] | None:
        """Return what `_best_shard` does if the shards' costs differ: any shard may be the best."""
        shards = np.flatnonzero(self._place_of == self.places[source])
        weights = self._whole[shards]
        sums = np.maximum(peak - weights, least + weights) + costs[shards]
        if not len(sums) or sums.min() >= peak:
            return None
        # Of equal ones the lowest shard; one without load never lowers a peak.
        best = int(np.argmin(sums))
        return int(sums[best]), int(shards[best])

    def move(self, shard: int, source: int, target: int) -> None:
        """Move a shard from one task to another."""
        weight = int(self._whole[shard])
        entry, shards = (weight, shard), self._shards_of(source)
        del shards[bisect_left(shards, entry)]
        insort(self._shards_of(target), entry)
        self._place_of[shard] = self.places[target]
        if self._cheapest_of:
            for position in (source, target):
                self._cheapest_of.pop(self.places[position], None)
        self.totals[source] -= weight
        self.totals[target] += weight


def _same(costs: NDArray[np.int64]) -> int | None:
    """Return what the move of every shard costs; None if they cost different amounts."""
    first = int(costs[0]) if len(costs) else 0
    return first if (costs == first).all() else None


def _whole(loads: NDArray[np.float64], *costs: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Return loads and costs as integers; a power of two as unit keeps small whole numbers and their ties exact."""
    largest = float(loads.max(initial=0.0))
    if largest <= 0:
        return [np.zeros(len(loads), dtype=np.int64) for _ in (loads, *costs)]
    # The sum of all has to fit too.
    bits = min(_SCALE_BITS, 62 - len(loads).bit_length())
    scale = bits - math.frexp(largest)[1]
    # No move gains more than the largest load.
    bounded = [loads, *(np.minimum(cost, largest) for cost in costs)]
    return [np.rint(np.ldexp(numbers, scale)).astype(np.int64) for numbers in bounded]


def _costs(name: str, cost: ArrayLike, shards: int) -> NDArray[np.float64]:
    given = as_floats(name, cost)
    if given.shape not in ((), (shards,)):
        raise PlanningError(f"{name} has shape {given.shape}: give one number, or one for each of {shards} shards.")
    if not (np.isfinite(given) & (given >= 0)).all():
        raise PlanningError(f"{name} is {cost!r}: give finite numbers of 0 or more.")
    return np.broadcast_to(given, (shards,))


def _checked(load: ArrayLike, owner: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    loads, owners = as_floats("load", load), as_array("owner", owner)
    if loads.ndim != 1 or owners.shape != loads.shape:
        raise PlanningError(f"load has shape {loads.shape}, owner {owners.shape}: give one number for each shard.")
    if owners.size and owners.dtype.kind not in "iu":
        raise PlanningError(f"owner has type {owners.dtype}: give task ids, which are integers.")
    wrong = np.flatnonzero(~(np.isfinite(loads) & (loads >= 0)))
    if wrong.size:
        shard = int(wrong[0])
        raise PlanningError(f"load of shard {shard} is {float(loads[shard])!r}: give a finite number of 0 or more.")
    return loads, owners.astype(np.int64)


def _checked_tasks(tasks: Sequence[int]) -> list[int]:
    given = as_array("tasks", tasks)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise PlanningError(f"tasks has shape {given.shape} and type {given.dtype}: give task ids, which are integers.")
    ids: list[int] = sorted(given.tolist())
    for first, second in pairwise(ids):
        if first == second:
            raise PlanningError(f"task {first} is named twice among {len(ids)} tasks: name each once.")
    return ids


def _places(owners: NDArray[np.int64], ids: list[int]) -> NDArray[np.int64]:
    """Return the position of each shard's owner among the tasks."""
    known = np.asarray(ids, dtype=np.int64)
    places = np.searchsorted(known, owners)
    strange = np.flatnonzero(known[np.minimum(places, len(ids) - 1)] != owners) if ids else np.arange(len(owners))
    if strange.size:
        shard = int(strange[0])
        raise PlanningError(f"shard {shard} is owned by {int(owners[shard])}, which is none of the tasks {ids}.")
    return places


def _nodes(ids: list[int], node_of_task: Nodes | None) -> list[Hashable]:
    """Return the node of each task, in the order of `ids`."""
    if node_of_task is None:
        return [None] * len(ids)
    if not isinstance(node_of_task, Mapping | Sequence | np.ndarray):
        raise PlanningError(f"node_of_task is {node_of_task!r}: give the node of each task, by task id.")
    if isinstance(node_of_task, Mapping):
        missing = [task for task in ids if task not in node_of_task]
    else:
        missing = [task for task in ids if not 0 <= task < len(node_of_task)]
    if missing:
        raise PlanningError(f"node_of_task has no node for task {missing[0]}: give one for each of the tasks {ids}.")
    nodes = [node_of_task[task] for task in ids]
    strange = [node for node in nodes if not isinstance(node, Hashable)]
    if strange:
        raise PlanningError(f"node_of_task has {strange[0]!r}: name nodes by numbers or text.")
    return nodes
