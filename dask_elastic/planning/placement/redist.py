"""Redist: places the heaviest groups one by one, and all others by a ring.

Goal
    Balance under skew by a compact function: a table of few groups, and a hash for the rest.
Heuristic
    The heaviest groups are placed anew, heaviest first: each stays if its bin has room below the allowed imbalance, and
    otherwise goes to the least loaded bin. Consistent hashing places the rest.
Not done
    State of different size: every group counts the same, which the paper criticises.

Notes
-----
State migration, sections 2 and 6, after Gedik's partitioning functions for stateful data parallelism; ELB/CLB, section
1.1, describes the pair of hash and table. Neither prints the construction, and no erratum concerns it: this module
follows their description, not Gedik's listing. The ring hashes numbers of groups and bins; the table depends on loads
and present bins only, so that with all groups in it no number matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.consistent_hash import ring
from dask_elastic.planning.placement.problem import SLACK, Ints, Placement, PlacementProblem
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number, is_whole


@dataclass(frozen=True)
class Redist:
    """Plan by a table of heavy groups over a ring.

    Parameters
    ----------
    tracked : int, optional
        The number of heaviest groups in the table; four for each live bin if left out.
    threshold : float
        The load of a bin over the mean, at least 1, up to which a heavy group stays.
    replicas : int
        Points of a bin on the ring.

    Raises
    ------
    PlanningError
        If an option is out of range.

    Notes
    -----
    State migration, section 6. The seed chooses the hash functions of the ring: keep it for the life of a job.

    Examples
    --------
    >>> problem = PlacementProblem([8, 8, 8, 8], current=[0, 0, 0, 1], bins=2)
    >>> Redist().plan(problem).bin.tolist()
    [0, 0, 1, 1]
    """

    tracked: int | None = None
    threshold: float = 1.2
    replicas: int = 100

    by_number = ("groups", "bins")

    def __post_init__(self) -> None:
        if self.tracked is not None and not (is_whole(self.tracked) and self.tracked >= 0):
            raise PlanningError(f"tracked is {self.tracked!r}: give 0 or more, or None.")
        if not (is_number(self.threshold) and self.threshold >= 1):
            raise PlanningError(f"threshold is {self.threshold!r}: give 1 or more.")
        if not (is_whole(self.replicas) and self.replicas >= 1):
            raise PlanningError(f"replicas is {self.replicas!r}: give 1 or more.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: the number of groups not on the bin that table and ring give."""
        return (float((bin != self._wanted(problem, seed)).sum()),)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement that table and ring give, as far as the rules allow."""
        return problem.placement(approach(problem, self._wanted(problem, seed)))

    def _wanted(self, problem: PlacementProblem, seed: int) -> Ints:
        tracked = 4 * int(problem.live.sum()) if self.tracked is None else self.tracked
        heavy = np.argsort(-problem.weight, kind="stable")[:tracked]
        wanted = ring(problem, self.replicas, seed)
        wanted[heavy] = -1
        shares, now = problem.shares(wanted), problem.shares(problem.current)
        most = self.threshold * problem.mean * (1 + SLACK)
        strength, live = problem.strength.tolist(), problem.live.tolist()
        for group, weight, home in zip(
            heavy.tolist(), problem.weight[heavy].tolist(), problem.current[heavy].tolist(), strict=True
        ):
            problem.pause()
            target = home
            if home < 0 or not live[home] or shares[home] + weight / strength[home] > most:
                after = np.where(problem.live, shares + weight / problem.strength, np.inf)
                # Among bins of equal load, such as empty ones, its own wins, then the least loaded now.
                least = np.flatnonzero(after == after.min()).tolist()
                target = min(least, key=lambda bin: (bin != home, now[bin], bin))
            wanted[group] = target
            shares[target] += weight / strength[target]
        return wanted
