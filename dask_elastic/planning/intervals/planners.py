"""The interval planners as objects with `plan(problem, seed)`, for the registry.

Notes
-----
State migration (Ding et al.), sections 4.3, 5.1 and 5.2. The functions beside this module do the work.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.planning.intervals.plan import IntervalPlan
from dask_elastic.planning.intervals.problem import IntervalProblem, SequenceProblem
from dask_elastic.planning.intervals.projected_costs import ProjectedCosts
from dask_elastic.planning.intervals.sequence import sequence
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.planning.intervals.transition import single_step_aware
from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True)
class SingleStep:
    """SSM: the assignment that moves least state now; see `dask_elastic.planning.intervals.single_step`.

    Notes
    -----
    State migration, section 4.3.

    Examples
    --------
    >>> problem = IntervalProblem([1] * 20, [1] * 20, [[0, 13], [13, 20]], nodes=3, tau=0.4)
    >>> SingleStep().plan(problem).cost
    4.0
    """

    def plan(self, problem: IntervalProblem, seed: int = 0) -> IntervalPlan:
        """Return the assignment of least cost; the seed is ignored."""
        return single_step(
            problem.load,
            problem.state_bytes,
            problem.intervals,
            problem.nodes,
            problem.tau,
            problem.allow_empty,
            problem.pause,
        )


@dataclass(frozen=True)
class TransitionAware:
    """The assignment with the least cost now plus discounted projected cost of later migrations.

    Parameters
    ----------
    projected : ProjectedCosts
        The projected cost of every partitioning; `dask_elastic.planning.intervals.value_iteration` computes it.

    Raises
    ------
    PlanningError
        If it is something else.

    Notes
    -----
    State migration, section 5.2; see `dask_elastic.planning.intervals.transition`. Whether a node may be left without
    tasks is as in the projected costs.
    """

    projected: ProjectedCosts

    def __post_init__(self) -> None:
        if not isinstance(self.projected, ProjectedCosts):
            raise PlanningError(f"projected is {self.projected!r}: give the ProjectedCosts of the job.")

    def plan(self, problem: IntervalProblem, seed: int = 0) -> IntervalPlan:
        """Return the assignment; its cost is that of this step alone. The seed is ignored."""
        return single_step_aware(
            problem.load,
            problem.state_bytes,
            problem.intervals,
            problem.nodes,
            problem.tau,
            self.projected,
            problem.pause,
        )


@dataclass(frozen=True)
class OptimalSequence:
    """OMS: the assignments of a sequence of migrations that move least state in total.

    Notes
    -----
    State migration, section 5.1; see `dask_elastic.planning.intervals.sequence`.

    Examples
    --------
    >>> problem = SequenceProblem([1] * 20, [1] * 20, [[0, 13], [13, 20]], [3, 4], tau=0.4)
    >>> [plan.cost for plan in OptimalSequence().plan(problem)]
    [4.0, 2.0]
    """

    def plan(self, problem: SequenceProblem, seed: int = 0) -> list[IntervalPlan]:
        """Return one assignment per step; the seed is ignored."""
        return sequence(
            problem.load,
            problem.state_bytes,
            problem.intervals,
            problem.nodes_sequence,
            problem.tau,
            problem.allow_empty,
            problem.pause,
        )
