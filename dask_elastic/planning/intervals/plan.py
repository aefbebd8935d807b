"""Interval plans: the consecutive tasks of each node, and the cost of changing from one assignment to another.

Goal
    What the interval planners share: plans, checks of intervals, and the matching of intervals to nodes.
Heuristic
    None. Intervals are matched to nodes so that most state stays; intervals without state then go where most tasks
    stay.
Not done
    Nodes of different strength: the load limit is the same for all.

Notes
-----
State migration (Ding et al.), sections 4.1 and 4.2. Tasks and nodes are numbered from 0. By erratum 3 the experiments'
"default τ = 1.2" most likely means the factor 1 + τ; here τ is that of Definition 4.1, so that is 0.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.matching import best_columns
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_floats, check_total


@dataclass(frozen=True, eq=False)
class IntervalPlan:
    """The tasks of each node after a migration, and the cost of the migration.

    Parameters
    ----------
    intervals : array of int, nodes × 2
        The tasks of each node, half-open; a node without tasks has an empty row.
    cost : float
        The state that changes its node, in the unit of `state_bytes`.

    Raises
    ------
    PlanningError
        If intervals overlap or leave a gap, or the cost is negative or not finite.

    Notes
    -----
    State migration, section 4.1.

    Examples
    --------
    >>> plan = IntervalPlan([[4, 6], [0, 0], [0, 4]], cost=2.0)
    >>> plan.tasks_per_interval
    (4, 2)
    >>> plan.node_of_task.tolist()
    [2, 2, 2, 2, 0, 0]
    """

    intervals: Ints
    cost: float

    def __post_init__(self) -> None:
        given = np.asarray(self.intervals)
        tasks = int(given.max(initial=0)) if given.dtype.kind in "iu" else 0
        rows = checked_intervals(given, tasks)
        rows.flags.writeable = False
        object.__setattr__(self, "intervals", rows)
        if not (math.isfinite(self.cost) and self.cost >= 0):
            raise PlanningError(f"cost is {self.cost!r}: give a finite number of 0 or more.")

    @property
    def tasks_per_interval(self) -> tuple[int, ...]:
        """The lengths of the intervals that are not empty, in the order of their tasks."""
        return tuple(np.diff(bounds_of(self.intervals)).tolist())

    @property
    def node_of_task(self) -> Ints:
        """The node of each task."""
        return nodes_of_tasks(self.intervals)


def bounds_of(intervals: Ints) -> Ints:
    """Return the starts of the intervals that are not empty, and the end of the last one.

    Parameters
    ----------
    intervals : array of int, nodes × 2
        Intervals that hold every task once, in any order.

    Returns
    -------
    array of int
        From 0 to the number of tasks, strictly ascending.

    Examples
    --------
    >>> bounds_of(np.array([[4, 6], [0, 0], [0, 4]])).tolist()
    [0, 4, 6]
    """
    used = intervals[intervals[:, 0] < intervals[:, 1]]
    result: Ints = np.append(0, np.sort(used[:, 1]))
    return result


def nodes_of_tasks(intervals: Ints) -> Ints:
    """Return the node of each task.

    Parameters
    ----------
    intervals : array of int, nodes × 2
        Intervals that hold every task once, in any order.

    Returns
    -------
    array of int
        One node a task.

    Examples
    --------
    >>> nodes_of_tasks(np.array([[4, 6], [0, 0], [0, 4]])).tolist()
    [2, 2, 2, 2, 0, 0]
    """
    order = np.lexsort((intervals[:, 1], intervals[:, 0]))
    lengths = (intervals[:, 1] - intervals[:, 0])[order]
    result: Ints = np.repeat(order, lengths)
    return result


def kept_state(state: Floats, before: Ints, bounds: Ints) -> Floats:
    """Return the state that each interval shares with the old interval of each node.

    Parameters
    ----------
    state : array of float
        The state of each task.
    before : array of int, nodes × 2
        The old interval of each node.
    bounds : array of int
        The starts of the new intervals, and the end of the last one.

    Returns
    -------
    array of float, intervals × nodes
        In the unit of `state`.
    """
    sums = np.append(0.0, np.cumsum(state))
    low = np.maximum(bounds[:-1, None], before[None, :, 0])
    high = np.minimum(bounds[1:, None], before[None, :, 1])
    result: Floats = sums[np.maximum(low, high)] - sums[low]
    return result


def assign(state: Floats, before: Ints, bounds: Ints, nodes: int, pause: Callable[[], None] = no_pause) -> IntervalPlan:
    """Assign intervals to nodes so that least state moves.

    Parameters
    ----------
    state : array of float
        The state of each task.
    before : array of int, nodes × 2
        The present interval of each node.
    bounds : array of int
        The starts of the intervals, and the end of the last one.
    nodes : int
        The number of nodes wanted, at least the number of intervals.
    pause : callable
        Called about every millisecond of work.

    Returns
    -------
    IntervalPlan
        With a row for each old or wanted node.

    Notes
    -----
    State migration, section 4.2: a matching. By erratum 2 the identities of nodes are free. An interval that keeps no
    state goes to the free node that keeps most of its tasks, then to a node in use.

    Examples
    --------
    >>> before = np.array([[0, 3], [3, 6]])
    >>> plan = assign(np.ones(6), before, np.array([0, 2, 4, 6]), nodes=3)
    >>> plan.intervals.tolist(), plan.cost
    ([[0, 2], [4, 6], [2, 4]], 2.0)
    """
    rows = max(len(before), nodes)
    padded = np.zeros((rows, 2), dtype=np.int64)
    padded[: len(before)] = before
    row, column, low, high = _overlaps(padded, bounds)
    sums = np.append(0.0, np.cumsum(state))
    kept = sums[high] - sums[low]
    worth = kept > 0
    pause()
    owner, most = best_columns(row[worth], column[worth], kept[worth], (len(bounds) - 1, rows), pause=pause)
    pause()
    owner[most == 0] = -1
    free = np.setdiff1d(np.arange(rows), owner)
    idle = np.flatnonzero(owner < 0)
    tasks = kept_state(np.ones(len(state)), padded[free], bounds)[idle]
    pause()
    in_use = (padded[free, 0] < padded[free, 1]) / (2.0 * rows)
    parts, places = linear_sum_assignment(tasks + in_use, maximize=True)
    owner[idle[parts]] = free[places]
    pause()
    intervals = np.zeros((rows, 2), dtype=np.int64)
    intervals[owner] = np.stack([bounds[:-1], bounds[1:]], axis=1)
    return IntervalPlan(intervals, moved_state(state, before, intervals))


def _overlaps(before: Ints, bounds: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the new intervals and old nodes that have tasks in common, and the first and the end of these tasks."""
    held = np.flatnonzero(before[:, 0] < before[:, 1])
    held = held[np.argsort(before[held, 0], kind="stable")]
    cuts = np.union1d(bounds, before[held, 1])
    low, high = cuts[:-1], cuts[1:]
    interval = np.searchsorted(bounds, low, side="right") - 1
    node = held[np.searchsorted(before[held, 0], low, side="right") - 1]
    return interval, node, low, high


def moved_state(state: Floats, before: Ints, after: Ints) -> float:
    """Return the state that changes its node.

    Parameters
    ----------
    state : array of float
        The state of each task.
    before, after : array of int, nodes × 2
        Intervals, row by row of the same nodes.

    Returns
    -------
    float
        In the unit of `state`.

    Examples
    --------
    >>> moved_state(np.array([1.0, 2.0, 4.0]), np.array([[0, 2], [2, 3]]), np.array([[0, 1], [1, 3]]))
    2.0
    """
    return float(state[nodes_of_tasks(before) != nodes_of_tasks(after)].sum())


def checked_tasks(load: ArrayLike, state_bytes: ArrayLike) -> tuple[Floats, Floats]:
    """Return loads and sizes as floats, or raise with the task whose number is invalid."""
    loads, state = checked_numbers("load", load), checked_numbers("state_bytes", state_bytes)
    if loads.shape != state.shape:
        raise PlanningError(f"load is for {len(loads)} tasks, state_bytes for {len(state)}: give both for all tasks.")
    return loads, state


def checked_intervals(intervals: ArrayLike, tasks: int) -> Ints:
    """Return the intervals as integers, or raise with the nodes that overlap or the missing task."""
    try:
        rows = np.array(intervals)
    except ValueError as error:
        raise PlanningError(f"intervals is no array: {error}. Give integers, nodes × 2, first task and end.") from error
    if rows.ndim != 2 or rows.shape[1] != 2 or not len(rows) or rows.dtype.kind not in "iu":
        raise PlanningError(
            f"intervals has shape {rows.shape} and type {rows.dtype}: give integers, nodes × 2, first task and end."
        )
    rows = rows.astype(np.int64)
    wrong = np.flatnonzero((rows[:, 0] < 0) | (rows[:, 0] > rows[:, 1]) | (rows[:, 1] > tasks))
    if wrong.size:
        node = int(wrong[0])
        raise PlanningError(
            f"the interval of node {node} is {rows[node].tolist()}: give the first task and the end, both from 0 to "
            f"{tasks}, in this order."
        )
    used = np.flatnonzero(rows[:, 0] < rows[:, 1])
    used = used[np.argsort(rows[used, 0], kind="stable")]
    ends = np.append(0, rows[used, 1])
    starts = np.append(rows[used, 0], tasks)
    for at in np.flatnonzero(starts != ends)[:1].tolist():
        start, end = int(starts[at]), int(ends[at])
        if start > end:
            raise PlanningError(
                f"intervals leave a gap: no node has task {end} of 0 to {tasks - 1}; each task needs a node."
            )
        first, second = int(used[at - 1]), int(used[at])
        raise PlanningError(
            f"intervals overlap: nodes {first} and {second} both have task {start}, by {rows[first].tolist()} and "
            f"{rows[second].tolist()}; each task has one node."
        )
    return rows


def checked_numbers(name: str, given: ArrayLike) -> Floats:
    """Return one number a task as floats, or raise with the task whose number is invalid."""
    values = as_floats(name, given).copy()
    if values.ndim != 1 or not len(values):
        raise PlanningError(f"{name} has shape {values.shape}: give one number for each task, one task at least.")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        task = int(wrong[0])
        raise PlanningError(f"{name} of task {task} is {float(values[task])!r}: give a finite number of 0 or more.")
    check_total(name, values)
    return values
