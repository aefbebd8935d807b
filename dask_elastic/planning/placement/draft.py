"""A placement under construction: groups move one by one, within the budget and the bins' capacities."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dask_elastic.planning.checked_arrays import SLACK, Floats, Ints, Mask
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.turns import in_turns

_FEW = 16
"""Up to so many groups are looked at one by one."""


class Draft:
    """A placement under construction that never breaks a rule: every group placed, within budget and capacity.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.
    wanted : array of int, optional
        The bins for new groups, if there is room; by default the bin that is least loaded with the group.
    """

    def __init__(self, problem: PlacementProblem, wanted: Ints | None = None):
        problem.pause()
        self.problem = problem
        self.bin: Ints = problem.current.copy()
        self.totals = problem.totals(self.bin)
        self.moves = 0
        self.cost = 0.0
        self._max_moves = math.inf if problem.max_moves is None else problem.max_moves
        self._max_cost = math.inf if problem.max_cost is None else problem.max_cost * (1 + SLACK)
        homeless = np.flatnonzero(self.bin < 0)
        for group in homeless[np.argsort(-problem.weight[homeless], kind="stable")].tolist():
            problem.pause()
            self._place(group, -1 if wanted is None else int(wanted[group]))

    @property
    def shares(self) -> Floats:
        """The bottleneck load of each bin as a share of its capacity."""
        return self.totals[:, self.problem.bottleneck] / self.problem.strength

    def room(self, group: int) -> Mask:
        """Return the bins that may get a group by draining and capacity, without regard to budgets."""
        loads = self.problem.loads[group]
        fits = ((self.totals + loads <= self.problem.limit) | (loads == 0)).all(axis=1)
        result: Mask = fits & self.problem.live
        return result

    def affords(self, groups: Ints) -> Mask:
        """Return which groups may move to a bin other than their first one, by pins and budgets."""
        problem = self.problem
        fresh = (self.bin[groups] == problem.current[groups]) & problem.placed[groups]
        within = (self.moves + problem.size[groups] <= self._max_moves) & (
            self.cost + problem.state_bytes[groups] <= self._max_cost
        )
        result: Mask = ~problem.pinned[groups] & (within | ~fresh)
        return result

    def allows(self, group: int, target: int) -> bool:
        """Return whether one group may go to a bin now."""
        problem, first = self.problem, self.problem.current[group]
        if target == self.bin[group]:
            return False
        # Budgets first: where they are used up, most groups are refused by them.
        if target != first and not (problem.live[target] and self._affords(group)):
            return False
        loads = problem.loads[group]
        return bool(((self.totals[target] + loads <= problem.limit[target]) | (loads == 0)).all())

    def movable(self, groups: Ints, wanted: Ints) -> Iterator[int]:
        """Yield in turn each group that may go to the bin it should get; the caller may move it before the next one.

        Parameters
        ----------
        groups : array of int
            The groups to look at, in this order.
        wanted : array of int
            The bin that each group of the problem should get.
        """
        at, width = 0, 1
        while at < len(groups):
            self.problem.pause()
            part = groups[at : at + width]
            place = self._first_allowed(part, wanted[part])
            if place == len(part):
                # Where budgets are used up, most groups are refused, so ever more are looked at together.
                at, width = at + width, 4 * width
            else:
                yield int(part[place])
                at, width = at + place + 1, 1

    def _first_allowed(self, groups: Ints, targets: Ints) -> int:
        """Return the place of the first group that `allows` would let go to its target; their number if none."""
        if len(groups) <= _FEW:
            both = enumerate(zip(groups.tolist(), targets.tolist(), strict=True))
            return next((place for place, one in both if self.allows(*one)), len(groups))
        problem = self.problem
        allowed = (targets == problem.current[groups]) | (problem.live[targets] & self.affords(groups))
        some = np.flatnonzero(allowed & (targets != self.bin[groups]))
        loads, goals = problem.loads[groups[some]], targets[some]
        fits = ((self.totals[goals] + loads <= problem.limit[goals]) | (loads == 0)).all(axis=1)
        return int(some[np.argmax(fits)]) if fits.any() else len(groups)

    def _affords(self, group: int) -> bool:
        """Return what `affords` does, for one group."""
        problem = self.problem
        if problem.pinned[group]:
            return False
        if self.bin[group] != problem.current[group] or not problem.placed[group]:
            return True
        within = self.moves + problem.size[group] <= self._max_moves
        return bool(within and self.cost + problem.state_bytes[group] <= self._max_cost)

    def move(self, group: int, target: int) -> None:
        """Move a group to a bin and count the cost; the caller has checked `allows`."""
        problem, source = self.problem, int(self.bin[group])
        if problem.placed[group]:
            step = int(target != problem.current[group]) - int(source != problem.current[group])
            self.moves += step * int(problem.size[group])
            self.cost += step * float(problem.state_bytes[group])
        if source >= 0:
            self.totals[source] -= problem.loads[group]
        self.totals[target] += problem.loads[group]
        self.bin[group] = target

    def take(self, bin: Ints) -> None:
        """Move all groups to these bins without checks."""
        for group in in_turns(np.flatnonzero(self.bin != bin).tolist(), self.problem.pause):
            self.move(group, int(bin[group]))

    def least(self, group: int, among: Mask) -> int:
        """Return the bin of a non-empty mask that would be least loaded with the group."""
        problem = self.problem
        after = (self.totals[:, problem.bottleneck] + problem.weight[group]) / problem.strength
        return int(np.argmin(np.where(among, after, np.inf)))

    def drain(self) -> None:
        """Move groups off draining bins, the heaviest first, each to the bin least loaded with it."""
        problem = self.problem
        stranded = np.flatnonzero(problem.draining[self.bin])
        for group in stranded[np.argsort(-problem.weight[stranded], kind="stable")].tolist():
            problem.pause()
            room = self.room(group)
            if room.any() and self.affords(np.array([group]))[0]:
                self.move(group, self.least(group, room))

    def _place(self, group: int, wanted: int) -> None:
        room = self.room(group)
        if wanted >= 0 and room[wanted]:
            self.move(group, wanted)
        else:
            self.move(group, self.least(group, room if room.any() else self.problem.live))
