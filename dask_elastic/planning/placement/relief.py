"""Relief: where a budget allows few moves, the least load distance that they can reach, and an answer that reaches it.

Goal
    A proof of optimality without the solver, where few groups may move among many bins.
Heuristic
    To bring all bins within a distance of the mean, each bin further above it must give groups, and each bin further
    below must get some. The number of moves and the state that this takes at least is counted bin by bin; the smallest
    distance that the budget allows bounds all answers from below. The answer gives groups of these bins to the bins
    that are furthest on the other side. If it reaches the bound, it is optimal.
Not done
    An answer where swaps are needed, or where bins that stay full forbid the moves: it is then no better than others.

Notes
-----
ALBIC, section 4.3.1, with constraint (1), the budget. Neither the paper nor an erratum mentions the bound. The cost of
a bin is that of the continuous knapsack, which is never above that of whole groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import SLACK, Floats, Ints, PlacementProblem

_STEPS = 40
"""Halvings of the distance: a millionth of a millionth of the greatest one remains."""


@dataclass(frozen=True, eq=False)
class Relief:
    """An answer, and a bound of all answers.

    Parameters
    ----------
    bin : array of int
        The bin of each group.
    least : float
        No answer within the budget has a smaller load distance.
    """

    bin: Ints
    least: float


def relieved(problem: PlacementProblem) -> Relief | None:
    """Return an answer for a problem whose budget allows few moves, and the least load distance of any answer.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.

    Returns
    -------
    Relief or None
        None without a budget, with groups that have no bin yet or leave a draining one, and without load.

    Examples
    --------
    >>> problem = PlacementProblem([3, 2, 2, 1, 1, 1], current=[0, 0, 0, 1, 1, 2], bins=4, max_moves=1)
    >>> found = relieved(problem)
    >>> found.bin.tolist(), round(found.least, 3)
    ([3, 0, 0, 1, 1, 2], 1.5)
    """
    limited = problem.max_moves is not None or problem.max_cost is not None
    if not limited or problem.mean <= 0 or not problem.placed.all() or problem.draining[problem.current].any():
        return None
    bins = _Bins(problem)
    away = np.abs(problem.shares(problem.current)[problem.live] - problem.mean)
    low, high = 0.0, float(away.max())
    for _ in range(_STEPS):
        problem.pause()
        middle = (low + high) / 2
        if bins.affordable(middle):
            high = middle
        else:
            low = middle
    draft = Draft(problem)
    _give(draft, bins, high)
    return Relief(draft.bin, low)


class _Bins:
    """The groups of each bin that may move, those with the most load for their price first."""

    def __init__(self, problem: PlacementProblem):
        self.problem = problem
        self.shares = problem.shares(problem.current)
        movable = np.flatnonzero(~problem.pinned & (problem.weight > 0) & problem.live[problem.current])
        self.budgets = [
            (prices, budget)
            for prices, budget in (
                (problem.size.astype(np.float64), problem.max_moves),
                (problem.state_bytes, problem.max_cost),
            )
            if budget is not None
        ]
        self._curves = [(_Curves(problem, movable, prices), float(budget)) for prices, budget in self.budgets]

    def affordable(self, distance: float) -> bool:
        """Return whether the budget may suffice to bring all bins within a distance of the mean."""
        problem, live = self.problem, self.problem.live
        over = np.where(live, (self.shares - problem.mean - distance) * problem.strength, 0.0)
        under = np.where(live, (problem.mean - distance - self.shares) * problem.strength, 0.0)
        noise = SLACK * problem.mean * float(problem.strength.max())
        high, low = np.flatnonzero(over > noise), np.flatnonzero(under > noise)
        for curves, budget in self._curves:
            # Each move takes a group from one bin to one other.
            need = max(curves.price_to_give(high, over[high]), curves.price_to_get(under[low]))
            if need > budget * (1 + SLACK) + SLACK:
                return False
        return True


class _Curves:
    """What giving or getting load costs at least, by the continuous knapsack."""

    def __init__(self, problem: PlacementProblem, movable: Ints, prices: Floats):
        problem.pause()
        weight, price, source = problem.weight[movable], prices[movable], problem.current[movable]
        with np.errstate(divide="ignore"):
            ratio = np.where(price > 0, weight / np.where(price > 0, price, 1.0), np.inf)
        order = np.lexsort((-ratio, source))
        self._weight, self._price = np.cumsum(weight[order]), np.cumsum(price[order])
        self._begins = np.searchsorted(source[order], np.arange(problem.bins + 1))
        self._best = float(ratio.max(initial=0.0))
        self._whole = bool((prices == np.round(prices)).all()) and bool((problem.size == prices).all())

    def price_to_give(self, bins: Ints, loads: Floats) -> float:
        """Return what bins pay at least to give these loads; infinite if their groups do not suffice."""
        first, after = self._begins[bins], self._begins[bins + 1]
        weight, price = (np.concatenate(([0.0], total)) for total in (self._weight, self._price))
        if (loads > (weight[after] - weight[first]) * (1 + SLACK)).any():
            return np.inf
        goal = np.minimum(weight[first] + loads, weight[after])
        # The group with which the goal is reached.
        last = np.clip(np.searchsorted(weight, goal * (1 - SLACK)), first + 1, after)
        whole = np.where(weight[last] > weight[last - 1], weight[last] - weight[last - 1], 1.0)
        part = np.clip((goal - weight[last - 1]) / whole, 0.0, 1.0)
        paid = price[last - 1] - price[first] + part * (price[last] - price[last - 1])
        return float(self._rounded(paid).sum())

    def price_to_get(self, loads: Floats) -> float:
        """Return what bins pay at least to get these loads, whichever groups they get."""
        if not len(loads):
            return 0.0
        if self._best <= 0:
            return np.inf
        return float(self._rounded(loads / self._best).sum())

    def _rounded(self, prices: Floats) -> Floats:
        """Return prices as whole moves where they are counts."""
        rounded: Floats = np.ceil(prices * (1 - 1e-9)) if self._whole else prices
        return rounded


def _give(draft: Draft, bins: _Bins, distance: float) -> None:
    """Bring the bins above the mean within a distance, each by its heaviest groups, then those below it."""
    problem = draft.problem
    limit, room = problem.mean + distance * (1 + SLACK), problem.mean - distance * (1 + SLACK)
    live = np.flatnonzero(problem.live)
    problem.pause()
    for source in live[np.argsort(-bins.shares[live], kind="stable")].tolist():
        if draft.shares[source] <= limit or not _step(draft, source, limit):
            break
    for target in live[np.argsort(bins.shares[live], kind="stable")].tolist():
        if draft.shares[target] >= room or not _fill(draft, target, room, limit):
            break


def _step(draft: Draft, source: int, limit: float) -> bool:
    """Give groups of a bin away until it is within the limit; return whether it is."""
    problem = draft.problem
    while draft.shares[source] > limit:
        problem.pause()
        groups = np.flatnonzero((draft.bin == source) & ~problem.pinned & (problem.weight > 0))
        if not len(groups):
            return False
        weight = problem.weight[groups]
        excess = (draft.shares[source] - limit) * problem.strength[source]
        # The lightest one that suffices; else the heaviest.
        enough = weight >= excess
        order = np.lexsort((np.where(enough, weight, -weight), ~enough))
        if not any(_to_least(draft, int(groups[at]), limit) for at in order[:8].tolist()):
            return False
    return True


def _to_least(draft: Draft, group: int, limit: float) -> bool:
    """Move a group to the bin furthest below the mean that can take it; return whether there is one."""
    after = draft.shares + draft.problem.weight[group] / draft.problem.strength
    fits = draft.room(group) & (after <= limit)
    fits[draft.bin[group]] = False
    if not fits.any():
        return False
    target = int(np.argmin(np.where(fits, draft.shares, np.inf)))
    if not draft.allows(group, target):
        return False
    draft.move(group, target)
    return True


def _fill(draft: Draft, target: int, room: float, limit: float) -> bool:
    """Give groups of the bins furthest above the mean to a bin until it has its least load; return whether it has."""
    problem = draft.problem
    while draft.shares[target] < room:
        problem.pause()
        lacks = (room - draft.shares[target]) * problem.strength[target]
        weight = problem.weight
        fits = ~problem.pinned & (weight >= lacks) & (draft.bin != target) & problem.live[draft.bin]
        fits &= draft.shares[target] + weight / problem.strength[target] <= limit
        fits &= draft.shares[draft.bin] - weight / problem.strength[draft.bin] >= room
        groups = np.flatnonzero(fits)
        best = groups[np.argsort(-draft.shares[draft.bin[groups]], kind="stable")][:8].tolist()
        chosen = next((group for group in best if draft.allows(group, target)), None)
        if chosen is None:
            return False
        draft.move(chosen, target)
    return True
