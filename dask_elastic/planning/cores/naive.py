"""First fit: the baseline of core planners, which ignores state and locality.

Goal
    What Elasticutor is compared with: elastic executors without its assignment of cores.
Heuristic
    The first free core is taken; where none is free, the first executor with more cores than granted gives one.
Not done
    State moved and bytes over the network are not considered.

Notes
-----
Elasticutor, section 5 (naive executor-centric).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.cores.assignment import CoreAssignment, migration_cost
from dask_elastic.planning.cores.columns import Cores
from dask_elastic.planning.cores.problem import CoreProblem


@dataclass(frozen=True)
class Naive:
    """Assign cores first fit.

    Notes
    -----
    Elasticutor, section 5: elastic executors without its assignment of cores.

    Examples
    --------
    >>> current, granted, capacity = np.array([[1], [0]]), np.array([2]), np.array([1, 1])
    >>> problem = CoreProblem(current, granted, capacity, np.array([1e6]), np.array([0]), np.array([0.0]))
    >>> Naive().plan(problem).assignment.tolist()
    [[1], [1]]
    """

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
            The cores and the bytes of state moved; the threshold is infinite, as no executor is kept at home.
        """
        cores, granted = problem.columns.matrix.copy(), problem.needed
        for node in range(len(cores)):
            while cores[node].sum() > problem.capacity[node]:
                cores[node, np.flatnonzero(cores[node])[-1]] -= 1
        for executor in range(cores.shape[1]):
            while cores[:, executor].sum() < granted[executor]:
                node, donor = self._first(cores, granted, problem.capacity, executor)
                if donor is not None:
                    cores[node, donor] -= 1
                cores[node, executor] += 1
        return CoreAssignment(cores, migration_cost(problem.columns.matrix, cores, problem.state_bytes), math.inf)

    def _first(self, cores: Cores, granted: Cores, capacity: Cores, taker: int) -> tuple[int, int | None]:
        """Return the first node with a free core, or else the first node and executor that can give one."""
        free = np.flatnonzero(cores.sum(axis=1) < capacity)
        if len(free):
            return int(free[0]), None
        spare = (cores.sum(axis=0) > granted) & (np.arange(cores.shape[1]) != taker)
        node, donor = np.argwhere((cores > 0) & spare & (capacity > 0)[:, None])[0].tolist()
        return node, donor
