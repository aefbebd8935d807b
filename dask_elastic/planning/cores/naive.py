"""First fit: the baseline of core planners, which ignores state and locality.

Goal
    What Elasticutor is compared with: elastic executors without its assignment of cores.
Heuristic
    The first free core is taken; where none is free, the first executor with more cores than granted gives one. A
    surplus is released from the first nodes.
Not done
    State moved and bytes over the network are not considered.

Notes
-----
Elasticutor, section 5 (naive executor-centric).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dask_elastic.planning.cores.assignment import CoreAssignment, migration_cost
from dask_elastic.planning.cores.columns import CoreColumns, Cores
from dask_elastic.planning.cores.problem import CoreProblem


@dataclass(frozen=True)
class Naive:
    """Assign cores first fit; `first_fit` tells the control loop to release them, and to leave them, first fit, too.

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

    first_fit: ClassVar[bool] = True

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


def released_first_fit(cores: CoreColumns, wanted: Cores) -> CoreColumns:
    """Release the cores that executors do not want from the first nodes, wherever home and state are.

    Parameters
    ----------
    cores : CoreColumns
        Cores that each executor has now.
    wanted : array of int
        Cores that each executor keeps. At least one is kept.

    Returns
    -------
    CoreColumns
        The cores that are left.

    Examples
    --------
    >>> released_first_fit(CoreColumns(3, [{0: 2, 1: 1, 2: 1}]), np.array([2])).columns
    [{1: 1, 2: 1}]
    """
    surplus = (cores.totals - np.maximum(wanted, 1)).tolist()
    columns = list(cores.columns)
    for executor, excess in enumerate(surplus):
        left = dict(columns[executor])
        while excess > 0:
            node = next(iter(left))
            taken = min(excess, left[node])
            left = {other: count - taken * (other == node) for other, count in left.items()}
            left = {other: count for other, count in left.items() if count}
            excess -= taken
        columns[executor] = left
    return CoreColumns(cores.nodes, columns)
