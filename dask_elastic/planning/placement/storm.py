"""Storm's scheduler: puts the same number of consecutive groups on every bin.

Goal
    The baseline that balances counts of groups and ignores everything else.
Heuristic
    The groups of each operator are cut into intervals of equal length, and these are matched to bins so that least
    state moves.
Not done
    Balance of loads.

Notes
-----
State migration, section 6, where Storm "simply allocates the same number of consecutive tasks to each node". It does
not state which interval goes to which node: by the fifth erratum the best matching decides, the most favourable
reading. Intervals follow the numbers of groups, so renumbering groups changes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.correlation import match
from dask_elastic.planning.placement.problem import Ints, Placement, PlacementProblem


@dataclass(frozen=True)
class Storm:
    """Plan by equal counts of consecutive groups.

    Notes
    -----
    State migration, section 6.

    Examples
    --------
    >>> problem = PlacementProblem([1, 1, 1, 9], current=[1, 1, 1, 0], bins=2, state_bytes=[1, 1, 1, 1])
    >>> Storm().plan(problem).bin.tolist()
    [1, 1, 0, 0]
    """

    by_number = ("groups",)

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: the number of groups outside the interval of their bin."""
        return (float((bin != _wanted(problem)).sum()),)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement by intervals, as far as the rules allow; the seed is ignored."""
        return problem.placement(approach(problem, _wanted(problem)))


def _wanted(problem: PlacementProblem) -> Ints:
    """Return the bin of each group's interval, each operator by itself."""
    bins = int(problem.live.sum())
    operators = np.zeros(problem.groups, dtype=np.int64) if problem.operator is None else problem.operator
    wanted = problem.current.copy()
    for operator in np.unique(operators):
        problem.pause()
        members = np.flatnonzero(operators == operator)
        label = np.arange(problem.groups) * 0
        label[members] = np.arange(len(members)) * min(bins, len(members)) // len(members)
        bin = np.full(problem.groups, -1, dtype=np.int64)
        bin[members] = problem.current[members]
        wanted[members] = match(problem, label, bin)[members]
    return wanted
