"""The load limit of a node, and the longest intervals of tasks within it.

Goal
    The load balancing constraint in one place, and errors that name the task, the limit, and a sufficient τ.
Heuristic
    None: taking the longest interval from each position on also uses the fewest intervals.
Not done
    Nodes of different capacity: the limit is the same for all.

Notes
-----
State migration (Ding et al.), section 4.1: W_i ≤ (1 + τ) W / n. By erratum 3 the experiments' "default τ = 1.2" most
likely means the factor 1 + τ, so that τ is 0.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.checked_arrays import MOST_BINS, SLACK, Floats, Ints
from dask_elastic.planning.intervals.plan import checked_numbers
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import Infeasible, PlanningError
from dask_elastic.vocab.numbers import MOST_TOTAL, is_number

_NEVER = 2**62


def load_limit(load: Floats, nodes: int, tau: float) -> float:
    """Return the greatest load of a node, (1 + τ) W / n.

    Parameters
    ----------
    load : array of float
        The load of each task.
    nodes : int
        The number of nodes.
    tau : float
        How far a node may exceed the mean, as a share of it.

    Returns
    -------
    float
        The limit, with a little slack for the rounding of sums.

    Notes
    -----
    State migration, section 4.1.
    """
    return (1.0 + tau) * float(load.sum()) / nodes * (1 + SLACK)


def reach(load: Floats, limit: float) -> Ints:
    """Return for each position the end of the longest interval from there within the limit.

    Parameters
    ----------
    load : array of float
        The load of each task.
    limit : float
        The greatest load of an interval.

    Returns
    -------
    array of int
        One for each position from 0 to the number of tasks; the position itself where even one task is too heavy.

    Examples
    --------
    >>> reach(np.array([1.0, 1.0, 3.0, 2.0]), limit=2.0).tolist()
    [2, 2, 2, 4, 4]
    """
    sums = np.append(0.0, np.cumsum(load))
    # The limit and the sums are rounded: a task above the limit must not pass beside a large sum.
    ends = np.searchsorted(sums, sums + limit, side="right") - 1
    heavy = np.append(load > limit, False)
    result: Ints = np.where(heavy, np.arange(len(ends)), ends)
    return result


def fewest_intervals(ends: Ints) -> Ints:
    """Return the fewest intervals that hold the tasks from each position on.

    Parameters
    ----------
    ends : array of int
        The result of `reach`.

    Returns
    -------
    array of int
        One for each position; a very large number where no number of intervals suffices.

    Examples
    --------
    >>> fewest_intervals(np.array([2, 2, 3, 3])).tolist()
    [2, 2, 1, 0]
    """
    tasks, furthest = len(ends) - 1, ends.tolist()
    fewest = [0] * (tasks + 1)
    for position in range(tasks - 1, -1, -1):
        end = furthest[position]
        fewest[position] = min(fewest[end] + 1, _NEVER) if end > position else _NEVER
    return np.array(fewest, dtype=np.int64)


def suffice(ends: Ints, count: int) -> bool:
    """Return whether some number of intervals can hold all tasks.

    Parameters
    ----------
    ends : array of int
        The result of `reach`.
    count : int
        The number of intervals.

    Examples
    --------
    >>> suffice(np.array([2, 2, 3, 3]), 1), suffice(np.array([2, 2, 3, 3]), 2)
    (False, True)
    """
    furthest, position = ends.tolist(), 0
    for _ in range(count):
        end = furthest[position]
        if end == position:
            break
        position = end
    return bool(position == len(furthest) - 1)


def least_tau(load: ArrayLike, nodes: int, pause: Callable[[], None] = no_pause) -> float:
    """Return the least τ that an assignment of intervals can meet.

    Parameters
    ----------
    load : array of float
        The load of each task.
    nodes : int
        The number of intervals.
    pause : callable
        Called about every millisecond of work.

    Returns
    -------
    float
        0 or more; 0 without load.

    Raises
    ------
    PlanningError
        If a load or the number of nodes is out of range.

    Notes
    -----
    State migration, Definition 4.1.

    Examples
    --------
    >>> least_tau([1, 1, 3, 3], nodes=2)
    0.25
    """
    loads = checked_numbers("load", load)
    checked_nodes(nodes)
    mean = float(loads.sum()) / nodes
    if mean == 0:
        return 0.0
    low, high = max(mean, float(loads.max())) * (1 - SLACK), float(loads.sum())
    while high - low > SLACK * high:
        pause()
        middle = (low + high) / 2
        if middle in (low, high):  # adjacent floats, or loads so small that the slack is 0
            break
        fits = suffice(reach(loads, middle), nodes)
        low, high = (low, middle) if fits else (middle, high)
    return max(_greatest(loads, reach(loads, high)) / mean - 1.0, 0.0)


def check_feasible(load: Floats, nodes: int, tau: float, allow_empty: bool, where: str = "") -> None:
    """Raise if no assignment is within the limit.

    Parameters
    ----------
    load : array of float
        The load of each task.
    nodes : int
        The number of intervals.
    tau : float
        How far a node may exceed the mean, as a share of it.
    allow_empty : bool
        Whether an interval may be empty.
    where : str
        The beginning of the message.

    Raises
    ------
    Infeasible
        Names the task, the limit, and a sufficient τ.
    """
    limit = load_limit(load, nodes, tau)
    heaviest = int(np.argmax(load))
    if load[heaviest] > limit:
        raise Infeasible(
            "load balancing",
            f"{where}task {heaviest} alone has a load of {float(load[heaviest])!r}, and the limit of a node is "
            f"{limit:.6g} (tau {tau!r}, {nodes} nodes). Give a tau of {_enough(load, nodes)} or more, or fewer nodes, "
            "or split the task.",
        )
    ends = reach(load, limit)
    if not suffice(ends, nodes):
        fewest = int(fewest_intervals(ends)[0])
        stuck = 0
        for _ in range(nodes):
            stuck = int(ends[stuck])
        raise Infeasible(
            "load balancing",
            f"{where}{nodes} intervals of consecutive tasks within the limit of {limit:.6g} (tau {tau!r}) end before "
            f"task {stuck}, whose load is {float(load[stuck])!r}; {fewest} are needed. Give a tau of "
            f"{_enough(load, nodes)} or more.",
        )
    if not allow_empty and nodes > len(load):
        raise Infeasible(
            "no empty interval", f"{where}{nodes} nodes are to have one of {len(load)} tasks each. Give fewer nodes."
        )


def checked_nodes(nodes: Any) -> int:
    """Return the number of nodes, or raise if it is not valid."""
    if isinstance(nodes, bool) or not isinstance(nodes, int | np.integer) or nodes < 1:
        raise PlanningError(f"nodes is {nodes!r}: give a whole number of 1 or more.")
    if nodes > MOST_BINS:
        raise PlanningError(f"nodes is {nodes!r}: give {MOST_BINS} at most.")
    return int(nodes)


def checked_tau(tau: float) -> float:
    """Return τ, or raise if it is not valid."""
    if not (is_number(tau) and 0 <= tau <= MOST_TOTAL):
        raise PlanningError(
            f"tau is {tau!r}: give a finite number of 0 or more, such as 0.2 for a fifth above the mean."
        )
    return float(tau)


def _greatest(load: Floats, ends: Ints) -> float:
    """Return the load of the heaviest interval if each is as long as possible."""
    furthest, starts, start = ends.tolist(), [], 0
    while start < len(load):
        starts.append(start)
        start = furthest[start]
    return float(np.add.reduceat(load, starts).max()) if starts else 0.0


def _enough(load: Floats, nodes: int) -> str:
    """Return the least τ as text, rounded up so that it suffices."""
    return f"{math.ceil(least_tau(load, nodes) * 1e4) / 1e4:g}"
