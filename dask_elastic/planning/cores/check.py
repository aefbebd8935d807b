"""The rules of assignments of cores, checked without knowing how a planner works."""

from __future__ import annotations

import numpy as np

from dask_elastic.planning.cores.assignment import CoreAssignment
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.vocab.counted import counted
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
    dask_elastic.vocab.errors.InvalidPlan: planner 'lazy' gives 1 core to executor 0, which has to get 2.
    """
    cores, who = solution.columns, f"planner {planner!r}" if planner else "the planner"
    if cores.shape != problem.columns.shape:
        raise InvalidPlan(f"{who} returns shape {cores.shape}: the problem has {problem.columns.shape}.")
    pairs = zip(problem.columns.columns, cores.columns, strict=True)
    least = min((count for old, new in pairs if new is not old for count in new.values()), default=0)
    if least < 0:
        raise InvalidPlan(f"{who} returns {counted(least, 'core')} of a node for an executor.")
    crowded = np.flatnonzero(cores.per_node > problem.capacity)
    if crowded.size:
        node = int(crowded[0])
        raise InvalidPlan(
            f"{who} gives out {counted(int(cores.per_node[node]), 'core')} of node {node}, which has "
            f"{int(problem.capacity[node])}."
        )
    due = np.maximum(problem.granted, 1)
    short = np.flatnonzero(cores.totals < due)
    if short.size:
        executor = int(short[0])
        raise InvalidPlan(
            f"{who} gives {counted(int(cores.totals[executor]), 'core')} to executor {executor}, which has to get "
            f"{int(due[executor])}."
        )
