"""The rules of assignments of cores, checked without knowing how a planner works."""

from __future__ import annotations

import numpy as np

from dask_elastic.planning.cores.assignment import CoreAssignment
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.vocab.errors import InvalidPlan


def validate(problem: CoreProblem, solution: CoreAssignment, planner: str = "") -> None:
    """Raise if an assignment breaks a rule of its problem.

    Parameters
    ----------
    problem : CoreProblem
        The problem.
    solution : CoreAssignment
        A planner's answer.
    planner : str
        Name of the planner, for the error text.

    Raises
    ------
    InvalidPlan
        If the shape is wrong, an entry is negative, a node gives more cores than it has, or an executor gets fewer
        than granted or none at all.

    Examples
    --------
    >>> one = np.array([1])
    >>> problem = CoreProblem(np.array([[1]]), 2 * one, 4 * one, 0.0 * one, 0 * one, 0.0 * one)
    >>> validate(problem, CoreAssignment(np.array([[1]]), 0.0, 1.0), "lazy")
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.InvalidPlan: planner 'lazy' gives executor 0 1 cores of 2.
    """
    cores, who = solution.columns, f"planner {planner!r}" if planner else "the planner"
    if cores.shape != problem.columns.shape:
        raise InvalidPlan(f"{who} returns shape {cores.shape}: the problem has {problem.columns.shape}.")
    least = min((count for column in cores.columns for count in column.values()), default=0)
    if least < 0:
        raise InvalidPlan(f"{who} returns {least} cores of a node for an executor.")
    crowded = np.flatnonzero(cores.per_node > problem.capacity)
    if crowded.size:
        node = int(crowded[0])
        raise InvalidPlan(
            f"{who} gives out {int(cores.per_node[node])} cores of node {node}, which has "
            f"{int(problem.capacity[node])}."
        )
    short = np.flatnonzero(cores.totals < np.maximum(problem.granted, 1))
    if short.size:
        executor = int(short[0])
        raise InvalidPlan(
            f"{who} gives executor {executor} {int(cores.totals[executor])} cores of {int(problem.granted[executor])}."
        )
