"""The rules of interval plans, checked without knowing how a planner works.

Notes
-----
State migration (Ding et al.), Definition 4.1.
"""

from __future__ import annotations

import numpy as np

from dask_elastic.planning.checked_arrays import SLACK
from dask_elastic.planning.intervals.load_limit import load_limit
from dask_elastic.planning.intervals.plan import IntervalPlan, checked_intervals, checked_tasks, moved_state
from dask_elastic.planning.intervals.problem import IntervalProblem
from dask_elastic.vocab.errors import InvalidPlan


def validate(problem: IntervalProblem, plan: IntervalPlan) -> None:
    """Raise if an interval plan breaks a rule of its problem.

    Parameters
    ----------
    problem : IntervalProblem
        The problem.
    plan : IntervalPlan
        A planner's answer.

    Raises
    ------
    InvalidPlan
        If it has another number of rows or tasks, more nodes in use than wanted, an empty interval where none is
        allowed, a node above the load limit, or another cost than the state that moves.

    Examples
    --------
    >>> problem = IntervalProblem([1, 1], [5, 5], [[0, 2]], nodes=2, tau=0.0)
    >>> validate(problem, IntervalPlan([[0, 2], [0, 0]], cost=0.0))
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.InvalidPlan: node 0 has a load of 2.0: the limit of 2 nodes is 1.
    """
    loads, state = checked_tasks(problem.load, problem.state_bytes)
    before = checked_intervals(problem.intervals, len(loads))
    rows = max(len(before), problem.nodes)
    if len(plan.intervals) != rows or int(plan.intervals.max()) != len(loads):
        raise InvalidPlan(
            f"intervals are {plan.intervals.tolist()}: give {rows} rows, which hold {len(loads)} tasks once."
        )
    used = int((plan.intervals[:, 0] < plan.intervals[:, 1]).sum())
    if used > problem.nodes or (used < problem.nodes and not problem.allow_empty):
        raise InvalidPlan(f"{used} nodes have tasks: {problem.nodes} nodes are wanted.")
    limit = load_limit(loads, problem.nodes, problem.tau)
    carried = np.array([loads[start:end].sum() for start, end in plan.intervals.tolist()])
    node = int(np.argmax(carried))
    if carried[node] > limit * (1 + SLACK):
        raise InvalidPlan(
            f"node {node} has a load of {float(carried[node])!r}: the limit of {problem.nodes} nodes is {limit:.6g}."
        )
    padded = np.zeros((rows, 2), dtype=np.int64)
    padded[: len(before)] = before
    cost = moved_state(state, padded, plan.intervals)
    if abs(plan.cost - cost) > SLACK * max(1.0, cost):
        raise InvalidPlan(f"cost is {plan.cost!r}: {cost!r} of state changes its node.")
