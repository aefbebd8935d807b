"""Flux: pairs the most with the least loaded bins and moves one group per pair.

Goal
    Quickly lower the variance of the bins' loads by few moves: the solver's baseline and its first answer.
Heuristic
    Bins are sorted by load; the first gives its heaviest suitable group to the last, the second to the last but one,
    and so on. Suitable is a group whose move lowers the variance.
Not done
    Swaps, and the cost of moves beyond the budget.

Notes
-----
ALBIC, section 2.2, describes Flux with one pass. By the fourth erratum, passes repeated until the budget is used or
nothing is gained come close to the optimum where the budget binds, while a single pass is far worse; a comparison must
state which of the two it uses. Draining bins are emptied first, which is not part of Flux.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import SLACK, Floats, Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import variance
from dask_elastic.planning.turns import in_turns
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_whole


@dataclass(frozen=True)
class Flux:
    """Plan by passes over pairs of bins.

    Parameters
    ----------
    passes : int, optional
        The most passes. If left out, passes repeat while they gain and the budget allows.

    Raises
    ------
    PlanningError
        If `passes` is below 1.

    Notes
    -----
    ALBIC, section 2.2, after Shah et al.

    Examples
    --------
    >>> problem = PlacementProblem([4, 3, 2, 1], current=[0, 0, 0, 0], bins=2)
    >>> Flux().plan(problem).bin.tolist(), Flux(passes=1).plan(problem).moves
    ([1, 0, 0, 1], 1)
    """

    passes: int | None = None

    def __post_init__(self) -> None:
        if self.passes is not None and not (is_whole(self.passes) and self.passes >= 1):
            raise PlanningError(f"passes is {self.passes!r}: give 1 or more, or None to repeat while it helps.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: the variance of the bins' loads."""
        return (variance(problem, bin),)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return a placement; the seed is ignored."""
        draft = Draft(problem)
        draft.drain()
        done = 0
        while (self.passes is None or done < self.passes) and one_pass(draft):
            draft.drain()
            done += 1
        return problem.placement(draft.bin)


def one_pass(draft: Draft) -> bool:
    """Move one group for each pair of bins where that helps; return whether any was moved.

    Parameters
    ----------
    draft : Draft
        The placement to work on.

    Returns
    -------
    bool
        Whether the variance is lower now.
    """
    problem = draft.problem
    problem.pause()
    live, shares = np.flatnonzero(problem.live), draft.shares
    # Among bins of equal load, such as empty ones, the strongest count as least loaded.
    order = live[np.lexsort((problem.strength[live], -shares[live]))]
    half = len(order) // 2
    partner = np.full(problem.bins, -1)
    partner[order[:half]] = order[::-1][:half]
    groups = _suitable(draft, shares, partner)
    if not draft.affords(groups).any():
        return False
    # Bins are in one pair each, so that a move leaves the groups of other pairs suitable.
    place = np.empty(problem.bins, dtype=np.int64)
    place[order] = np.arange(len(order))
    source = draft.bin[groups]
    groups = groups[np.lexsort((groups, -problem.weight[groups], place[source]))]
    ends = np.flatnonzero(np.diff(draft.bin[groups])) + 1
    problem.pause()
    parts = in_turns(np.split(groups, ends), problem.pause)
    return sum(_give(draft, some, partner) for some in parts) > 0


def _suitable(draft: Draft, shares: Floats, partner: Ints) -> Ints:
    """Return the groups whose move to their bin's partner fits there and lowers the variance of the two bins."""
    problem = draft.problem
    groups = np.flatnonzero((partner[draft.bin] >= 0) & (problem.weight > 0) & ~problem.pinned)
    source = draft.bin[groups]
    target = partner[source]
    step = problem.weight[groups] * (1 / problem.strength[source] + 1 / problem.strength[target]) / 2
    fits = (draft.totals[target] + problem.loads[groups] <= problem.limit[target]).all(axis=1)
    result: Ints = groups[(step < (shares[source] - shares[target]) * (1 - SLACK)) & fits]
    return result


def _give(draft: Draft, groups: Ints, partner: Ints) -> bool:
    """Move the first of a bin's groups that the budget allows to the bin's partner; return whether there is one."""
    allowed = groups[draft.affords(groups)]
    if not allowed.size:
        return False
    draft.move(int(allowed[0]), int(partner[draft.bin[allowed[0]]]))
    return True
