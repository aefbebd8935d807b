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
from dask_elastic.planning.placement.problem import SLACK, Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import variance
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
    live = np.flatnonzero(draft.problem.live)
    # Among bins of equal load, such as empty ones, the strongest count as least loaded.
    order = live[np.lexsort((draft.problem.strength[live], -draft.shares[live]))].tolist()
    half = len(order) // 2
    pairs = zip(order[:half], order[::-1][:half], strict=True)
    return sum(_give(draft, source, target) for source, target in pairs) > 0


def _give(draft: Draft, source: int, target: int) -> bool:
    """Move the heaviest group that lowers the variance of the two bins; return whether there is one."""
    problem = draft.problem
    shares, strength, weight = draft.shares, problem.strength, problem.weight
    groups = np.flatnonzero(draft.bin == source)
    step = weight[groups] * (1 / strength[source] + 1 / strength[target]) / 2
    gap = float(shares[source] - shares[target])
    fits = (draft.totals[target] + problem.loads[groups] <= problem.limit[target]).all(axis=1)
    suitable = groups[(step < gap * (1 - SLACK)) & (weight[groups] > 0) & fits & draft.affords(groups)]
    if not suitable.size:
        return False
    draft.move(int(suitable[np.argmax(weight[suitable])]), target)
    return True
