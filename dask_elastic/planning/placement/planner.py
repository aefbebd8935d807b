"""What every placement planner can do."""

from __future__ import annotations

from typing import Protocol

from dask_elastic.planning.placement.problem import Ints, Placement, PlacementProblem
from dask_elastic.planning.planner import Planner


class PlacementPlanner(Planner[PlacementProblem, Placement], Protocol):
    """A planner of placements, which also states what it minimises.

    Notes
    -----
    Its placements pass `dask_elastic.planning.placement.check.validate`, and are never worse than staying for its own
    objective unless they empty draining bins. Where a planner cannot keep a part of the contract in
    `dask_elastic.testing.planners`, it declares so by the attributes ``gradual`` and ``by_number``.

    Examples
    --------
    >>> from dask_elastic.planning.placement.flux import Flux
    >>> planner: PlacementPlanner = Flux()
    >>> problem = PlacementProblem(load=[3.0, 1.0], bins=2, current=[0, 0])
    >>> placement = planner.plan(problem)
    >>> planner.objective(problem, placement.bin) <= planner.objective(problem, problem.current)
    True
    """

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what the planner minimises, the most important number first.

        Parameters
        ----------
        problem : PlacementProblem
            The problem.
        bin : array of int
            The bin of each group.
        seed : int
            The seed that `plan` was given.

        Returns
        -------
        tuple of float
            The objective; smaller is better, compared from the first number on.

        Examples
        --------
        See `PlacementPlanner`.
        """
        ...
