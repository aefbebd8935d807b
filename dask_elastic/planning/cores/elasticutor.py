"""The core planner of Elasticutor: little state moves, and data-intensive executors stay at home.

Notes
-----
Elasticutor, section 4.2, with the second, third and fifth erratum; see `dask_elastic.planning.cores.assign_cores`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dask_elastic.planning.cores.assignment import CoreAssignment, assignment_of
from dask_elastic.planning.cores.problem import CoreProblem


@dataclass(frozen=True)
class Elasticutor:
    """Assign cores by Algorithm 1 as the errata correct it.

    Notes
    -----
    Elasticutor, section 4.2, with the second, third and fifth erratum.

    Examples
    --------
    >>> import numpy as np
    >>> current, granted, capacity = np.array([[1], [0]]), np.array([2]), np.array([1, 1])
    >>> problem = CoreProblem(current, granted, capacity, np.array([1e6]), np.array([0]), np.array([0.0]))
    >>> Elasticutor().plan(problem).assignment.tolist()
    [[1], [1]]
    """

    first_fit: ClassVar[bool] = False

    def plan(self, problem: CoreProblem, seed: int = 0) -> CoreAssignment:
        """Return the assignment.

        Parameters
        ----------
        problem : CoreProblem
            The executors and the cores.
        seed : int
            Ignored: the answer does not depend on chance.

        Returns
        -------
        CoreAssignment
            The cores, the bytes of state moved, and the threshold of data intensity that could be kept.

        Raises
        ------
        Infeasible
            If more cores are granted than exist, or data-intensive executors do not fit at home.
        PlanningError
            If an entry is negative or not finite, or a home is no node.
        """
        return assignment_of(problem)
