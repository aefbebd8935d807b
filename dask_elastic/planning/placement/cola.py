"""COLA: collocates communicating groups by balanced graph partitioning.

Goal
    Little traffic between bins at a sufficient balance; a placement from scratch, as at submit.
Heuristic
    All groups are one part at first. The heaviest part is split in two, with little traffic cut, until the parts can be
    packed on the bins with sufficient balance, heaviest first onto the least loaded bin.
Not done
    Saving moves, except by the choice among equal bins for each part.

Notes
-----
ALBIC, sections 2.1 and 5.4, describe COLA without a listing. By the fifth erratum it suits the placement at submit, not
the running job: where no part of it within the budget is better than staying, nothing moves. METIS makes the
partitions and breaks ties by the numbers of groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

import numpy as np

from dask_elastic.planning.placement.bisection import Bisection
from dask_elastic.planning.placement.check import approach, settle
from dask_elastic.planning.placement.correlation import match
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import SLACK, Floats, Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import better, collocation, load_distance
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number


@dataclass(frozen=True)
class Cola:
    """Plan by partitioning the graph of traffic.

    Parameters
    ----------
    max_distance : float
        The sufficient load distance, as a share of the mean load.

    Raises
    ------
    PlanningError
        If it is negative.

    Notes
    -----
    ALBIC, section 2.1, after Khandekar et al. The seed is passed to METIS.

    Examples
    --------
    >>> problem = PlacementProblem([1, 1, 1, 1], [0, 0, 1, 1], 2, traffic=np.eye(4)[[2, 3, 0, 1]])
    >>> Cola().plan(problem).bin.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True
    """

    max_distance: float = 0.2

    by_number = ("groups",)

    def __post_init__(self) -> None:
        if not (is_number(self.max_distance) and self.max_distance >= 0):
            raise PlanningError(f"max_distance is {self.max_distance!r}: give 0 or more.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: load left to drain, load distance above the sufficient one, traffic."""
        beyond = load_distance(problem, bin) - self.max_distance * problem.mean
        return problem.to_drain(bin), max(beyond, 0.0), 1 - collocation(problem, bin)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement found from scratch, as far as the rules allow, if it is better than staying."""
        return problem.placement(settle(problem, lambda part: self._once(part, seed)))

    def _once(self, problem: PlacementProblem, seed: int) -> Ints:
        draft = Draft(problem)
        best, key = draft.bin.copy(), self.objective(problem, draft.bin)
        draft.drain()
        for bin in (draft.bin, approach(problem, self._from_scratch(problem, seed))):
            found = self.objective(problem, bin)
            if better(found, key):
                best, key = bin, found
        return best

    def _from_scratch(self, problem: PlacementProblem, seed: int) -> Ints:
        parts = _Parts(problem, seed)
        bins, checked = int(problem.live.sum()), 0
        most = (1 + self.max_distance) * problem.mean * (1 + SLACK)
        while True:
            last, count = not parts.queue, len(parts.members)
            # Packing is tried again when the number of parts has grown by a quarter.
            if last or (count >= bins and count >= 1.25 * checked):
                checked = count
                bin = parts.packed(math.inf if last else most)
                if bin is not None and (last or load_distance(problem, bin) <= self.max_distance * problem.mean):
                    return _exchanged(problem, bin)
            parts.split()


class _Parts:
    """Parts of the groups, of which the heaviest is split next.

    Attributes
    ----------
    members : list of array of int
        The groups of each part.
    label : array of int
        The part of each group.
    queue : list
        The parts that can be split, a heap with the heaviest first.
    """

    def __init__(self, problem: PlacementProblem, seed: int):
        self._problem = problem
        self._bisection = Bisection(problem.traffic, problem.weight, seed)
        self.label: Ints = np.zeros(problem.groups, dtype=np.int64)
        self.members: list[Ints] = []
        self.size: list[float] = []
        self.queue: list[tuple[float, int]] = []
        # By number of a part: its two halves and their weights.
        self._halves: dict[int, tuple[tuple[Ints, float], tuple[Ints, float]]] = {}
        self._add(0, np.arange(problem.groups), float(problem.weight.sum()))

    def split(self) -> None:
        """Split the heaviest part that has several groups."""
        size, part = self.queue[0]
        if part not in self._halves:
            # Cuts of different parts do not depend on each other: those that are likely to be next are made together.
            self._cut([one for weight, one in self.queue if weight <= size / 2 and one not in self._halves])
        heappop(self.queue)
        first, second = self._halves.pop(part)
        self._add(part, *first)
        self._add(len(self.members), *second)

    def _cut(self, parts: list[int]) -> None:
        """Cut some parts in two."""
        groups = [self.members[part] for part in parts]
        self._bisection.keep(self.label)
        halves = self._bisection.halves(groups)
        members, second = np.concatenate(groups), np.concatenate(halves)
        begins = np.cumsum([0, *map(len, groups[:-1])])
        weight = self._problem.weight[members]
        sums = [np.add.reduceat(np.where(side, weight, 0.0), begins).tolist() for side in (~second, second)]
        for part, group, half, left, right in zip(parts, groups, halves, *sums, strict=True):
            self._halves[part] = (group[~half], left), (group[half], right)

    def packed(self, most: float) -> Ints | None:
        """Return the bin of each group, with the parts on bins, heaviest first onto the least loaded one.

        Parameters
        ----------
        most : float
            The largest share of its capacity that a bin may bear; None is returned where one would bear more.
        """
        problem, size = self._problem, np.array(self.size)
        if self._crowds(size, most):
            return None
        order = np.argsort(-size, kind="stable").tolist()
        place = np.zeros(len(size), dtype=np.int64)
        if (problem.strength == problem.strength[0]).all():
            queue = [(0.0, bin) for bin in np.flatnonzero(problem.live).tolist()]
            for part in order:
                load, bin = queue[0]
                place[part] = bin
                heapreplace(queue, (load + self.size[part], bin))
            return place[self.label]
        shares, strength, each = np.where(problem.live, 0.0, np.inf), problem.strength.tolist(), 1 / problem.strength
        after = np.empty(problem.bins)
        # Where no bin is twice as strong as another, parts go to empty bins first, the strongest of them.
        empty = sorted(np.flatnonzero(problem.live).tolist(), key=lambda bin: -strength[bin])
        if strength[empty[0]] <= 2 * strength[empty[-1]]:
            for part, bin in zip(order, empty, strict=False):
                place[part] = bin
                shares[bin] = self.size[part] / strength[bin]
            if (shares[empty] > most).any():
                return None
            del order[: len(empty)]
        for part in order:
            np.multiply(each, self.size[part], out=after)
            after += shares
            bin = int(after.argmin())
            place[part] = bin
            shares[bin] += self.size[part] / strength[bin]
            if shares[bin] > most:
                return None
        return place[self.label]

    def _crowds(self, size: Floats, most: float) -> bool:
        """Return whether every packing loads some bin with more: of k bins + 1 parts, one bin gets k + 1."""
        bins, limit = int(self._problem.live.sum()), most * float(self._problem.strength.max())
        sums = np.append(0.0, np.cumsum(np.sort(size)[::-1]))
        for several in range((len(size) - 1) // bins + 1):
            last = several * bins + 1
            if sums[last] - sums[last - several - 1] > limit * (1 + SLACK):
                return True
        return False

    def _add(self, part: int, members: Ints, weight: float) -> None:
        """Add a part, or replace one that was split."""
        if part == len(self.members):
            self.members.append(members)
            self.size.append(weight)
            self.label[members] = part
        else:
            self.members[part], self.size[part] = members, weight
        if len(members) > 1:
            heappush(self.queue, (-weight, part))


def _exchanged(problem: PlacementProblem, bin: Ints) -> Ints:
    """Exchange equal bins for traffic with pinned groups, then for state."""
    if problem.capacity is not None:
        return bin
    packed = np.searchsorted(np.unique(bin), bin)
    return match(problem, packed, problem.current, _drawn(problem, packed))


def _drawn(problem: PlacementProblem, label: Ints) -> Floats | None:
    """Return the traffic of each set with the pinned groups of each bin, which in all counts twice as much as state."""
    fixed = np.flatnonzero(problem.pinned & problem.placed)
    if problem.traffic is None or not len(fixed):
        return None
    both = (problem.traffic + problem.traffic.T).tocsc()[:, fixed].tocoo()
    drawn = np.zeros((int(label.max()) + 1, problem.bins))
    np.add.at(drawn, (label[both.row], problem.current[fixed][both.col]), both.data)
    whole = float(drawn.sum())
    return 2 * drawn / whole if whole > 0 else None
