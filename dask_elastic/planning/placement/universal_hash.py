"""UHLB: a random hash function decides the bin of each group.

Goal
    The baseline that balances at random and moves nearly all groups.
Heuristic
    A function is drawn from a 2-universal family; where it balances no better than staying, nothing moves.
Not done
    State is ignored.

Notes
-----
ELB/CLB, section 5, which gives neither the family nor when a new function is drawn; no erratum
concerns it. The family is Carter and Wegman's, ((a x + b) mod p) mod n; the best of `draws` functions is taken. It maps
numbers of groups to numbers of bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.placement.check import approach, settle
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import better, variance
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_seed, is_whole

_PRIME = 2**31 - 1


@dataclass(frozen=True)
class UniversalHash:
    """Plan by a hash function drawn at random.

    Parameters
    ----------
    draws : int
        The number of functions to try.

    Raises
    ------
    PlanningError
        If `draws` is below 1.

    Notes
    -----
    ELB/CLB, section 5. The seed draws the functions.

    Examples
    --------
    >>> problem = PlacementProblem([1] * 100, current=[0] * 100, bins=4)
    >>> bool(np.bincount(UniversalHash().plan(problem).bin, minlength=4).min() > 10)
    True
    """

    draws: int = 1

    by_number = ("groups", "bins")

    def __post_init__(self) -> None:
        if not (is_whole(self.draws) and self.draws >= 1):
            raise PlanningError(f"draws is {self.draws!r}: give 1 or more.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: load left to drain, and the variance of the bins' loads."""
        return problem.to_drain(bin), variance(problem, bin)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the best placement by a drawn function, or staying with drained bins."""
        return problem.placement(settle(problem, lambda part: self._once(part, seed)))

    def _once(self, problem: PlacementProblem, seed: int) -> Ints:
        random = np.random.default_rng(as_seed(seed))
        draft = Draft(problem)
        best, key = draft.bin.copy(), self.objective(problem, draft.bin)
        draft.drain()
        answers = [draft.bin]
        live = np.flatnonzero(problem.live)
        for _ in range(self.draws):
            factor, shift = int(random.integers(1, _PRIME)), int(random.integers(0, _PRIME))
            slot = (np.arange(problem.groups) * factor + shift) % _PRIME % len(live)
            answers.append(approach(problem, live[slot]))
        for bin in answers:
            problem.pause()
            found = self.objective(problem, bin)
            if better(found, key):
                best, key = bin, found
        return best
