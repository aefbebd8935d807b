"""ELB: in every window, bins above the mean load give small groups to bins below it.

Goal
    Bring the load of every bin into a range around the mean with few moves, using the last window only.
Heuristic
    Groups move only from overloaded to underloaded bins. A bin gives its largest groups that fit into its excess; they
    are placed largest first, each on the least loaded bin that can hold it.
Not done
    Adding bins where the range requires more. Groups larger than half the range's width do not move.

Notes
-----
ELB/CLB, section 3 (Algorithm 1). By the second erratum `[v, u]` is the range of load allowed per instance, and the
required number of instances is π = ⌈2w / (u + v)⌉ with w the total load; by the third the threshold for a
substream to leave instance j is min(l_j − mean, (u − v) / 2). Rounds are repeated while they lower the variance,
so that planning again changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import SLACK, Floats, Ints, Mask, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import better, variance
from dask_elastic.planning.turns import in_turns
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number


@dataclass(frozen=True)
class Eager:
    """Plan by eager load balancing.

    Parameters
    ----------
    lower, upper : float, optional
        The range of load of a bin, as a share of capacity; within a tenth of the mean if left out. A range whose middle
        is above the mean empties the least loaded bins.

    Raises
    ------
    PlanningError
        If only one of the two is given, or the lower one is negative or not below the upper one.

    Notes
    -----
    ELB/CLB, section 3.

    Examples
    --------
    >>> problem = PlacementProblem([1] * 20, current=[0] * 12 + [1] * 8, bins=2)
    >>> Eager().plan(problem).moves
    2
    >>> Eager(lower=15, upper=25).plan(problem).bin.tolist() == [0] * 20
    True
    """

    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("lower", self.lower), ("upper", self.upper)):
            if value is not None and not is_number(value):
                raise PlanningError(f"{name} is {value!r}: give a number, or None.")
        if (self.lower is None) != (self.upper is None):
            raise PlanningError(f"lower is {self.lower!r}, upper {self.upper!r}: give both ends of the range, or none.")
        if self.lower is not None and self.upper is not None and not 0 <= self.lower < self.upper:
            raise PlanningError(f"lower is {self.lower!r}, upper {self.upper!r}: give 0 or more, in ascending order.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: load on bins to be emptied, and the variance of the other bins' loads."""
        fewer = self._fewer(problem)
        return fewer.to_drain(bin), variance(fewer, bin)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return a placement; the seed is ignored."""
        fewer = self._fewer(problem)
        bin = Draft(fewer).bin
        key = self.objective(problem, bin)
        while True:
            wanted, order = self._round(fewer, bin)
            reached = approach(fewer, wanted, order)
            found = self.objective(problem, reached)
            if not better(found, key):
                return problem.placement(bin)
            bin, key = reached, found

    def _range(self, problem: PlacementProblem) -> tuple[float, float]:
        if self.lower is None or self.upper is None:
            return 0.9 * problem.mean, 1.1 * problem.mean
        return self.lower, self.upper

    def _fewer(self, problem: PlacementProblem) -> PlacementProblem:
        """Return the problem with the least loaded bins draining where the range requires fewer bins."""
        lower, upper = self._range(problem)
        if upper <= 0:
            return problem
        needed = 2 * float(problem.weight.sum()) / (lower + upper) * (1 - SLACK)
        live = np.flatnonzero(problem.live)
        order = live[np.argsort(-problem.shares(problem.current)[live], kind="stable")]
        before = np.cumsum(problem.strength[order]) - problem.strength[order]
        extra = order[1:][before[1:] >= needed]
        if not extra.size:
            return problem
        draining = problem.draining.copy()
        draining[extra] = True
        fewer = replace(problem, draining=draining)
        # If the remaining bins are short of capacity, capacity no longer limits: then no bin is emptied.
        return problem if (np.isinf(fewer.limit) != np.isinf(problem.limit)).any() else fewer

    def _round(self, problem: PlacementProblem, bin: Ints) -> tuple[Ints, Ints]:
        """Return the wanted bin of each group, and the groups that move, largest first."""
        problem.pause()
        lower, upper = self._range(problem)
        shares, live = problem.shares(bin), problem.live
        stranded = np.flatnonzero(problem.draining[bin] & ~problem.pinned)
        outside = (shares[live] > upper * (1 + SLACK)) | (shares[live] < lower * (1 - SLACK))
        chosen = [stranded]
        if outside.any():
            over = live & (shares > problem.mean)
            chosen.append(_leaving(problem, bin, shares, over, (upper - lower) / 2))
        leaving = np.concatenate(chosen)
        queue = leaving[np.argsort(-problem.weight[leaving], kind="stable")]
        return _first_fit(problem, bin, queue, upper), queue


def _leaving(problem: PlacementProblem, bin: Ints, shares: Floats, over: Mask, most: float) -> Ints:
    """Return the groups that overloaded bins give: each repeatedly its largest below the threshold."""
    groups = np.flatnonzero(over[bin] & ~problem.pinned & (problem.weight > 0))
    sizes = problem.weight[groups] / problem.strength[bin[groups]]
    small = sizes <= most * (1 + SLACK)
    groups, sizes = groups[small], sizes[small]
    order = np.lexsort((-sizes, bin[groups]))
    excess = dict(enumerate((shares - problem.mean).tolist()))
    leaving = []
    sources = bin[groups[order]].tolist()
    queue = zip(groups[order].tolist(), sources, sizes[order].tolist(), strict=True)
    for group, source, size in in_turns(queue, problem.pause):
        if size <= excess[source] * (1 + SLACK):
            leaving.append(group)
            excess[source] -= size
    return np.array(leaving, dtype=np.int64)


def _first_fit(problem: PlacementProblem, bin: Ints, queue: Ints, upper: float) -> Ints:
    """Place the queued groups on bins that are not overloaded, each on the least loaded that can hold it."""
    wanted = bin.copy()
    wanted[queue] = -1
    shares = problem.shares(wanted)
    under = problem.live & (shares <= problem.mean * (1 + SLACK))
    for group in queue.tolist():
        problem.pause()
        after = shares + problem.weight[group] / problem.strength
        for among in (under & (after <= upper * (1 + SLACK)), under, problem.live):
            if among.any():
                target = int(np.argmin(np.where(among, after, np.inf)))
                break
        wanted[group] = target
        shares[target] = after[target]
        under[target] &= bool(after[target] <= problem.mean * (1 + SLACK))
    return wanted
