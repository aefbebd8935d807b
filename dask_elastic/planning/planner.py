"""What every planner is, whatever it plans: `plan(problem, seed) -> solution`.

Goal
    One shape for planners of cores, placements and intervals, so that one registry and one conformance kit serve all.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

Problem = TypeVar("Problem", contravariant=True)
Solution = TypeVar("Solution", covariant=True)


class Planner(Protocol[Problem, Solution]):
    """A value that turns a problem into a solution.

    Notes
    -----
    The solution follows from the problem and the seed alone, and the problem stays as it was. The solution keeps the
    rules of its problem, which the ``check`` module beside the problem states.
    `dask_elastic.testing.planners.check_planner` tests a planner of any kind against its contract.

    Examples
    --------
    A planner that moves no group:

    >>> from dask_elastic.planning.placement.problem import PlacementProblem
    >>> class Stay:
    ...     def plan(self, problem, seed=0):
    ...         return problem.placement(problem.current)
    >>> Stay().plan(PlacementProblem([4, 2], current=[0, 1], bins=2)).moves
    0
    """

    def plan(self, problem: Problem, seed: int = 0) -> Solution:
        """Return a solution of the problem.

        Parameters
        ----------
        problem : Problem
            A `CoreProblem`, `PlacementProblem`, `IntervalProblem` or `SequenceProblem`.
        seed : int
            Seeds every random choice. Deterministic planners ignore it.

        Returns
        -------
        Solution
            A `CoreAssignment`, a `Placement`, an `IntervalPlan`, or a list of these for a sequence.
        """
        ...
