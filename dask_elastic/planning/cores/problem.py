"""The problem of giving cores to executors, checked, and its three constraints.

Notes
-----
Elasticutor, section 4.2: (a) a node's cores suffice, (b) X ≥ k for every executor, (c) data-intensive executors have
all cores at home. Third and fifth erratum: an executor's last core counts as wanted; data intensity is bytes in and out
per second and core, with a threshold of 512 KB/s that is doubled until (c) can be kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.vocab.errors import Infeasible, PlanningError
from dask_elastic.vocab.numbers import as_array, as_floats, is_number, is_whole

Cores = NDArray[np.int64]
Amounts = NDArray[np.float64]


class CoreProblem(NamedTuple):
    """The arguments of `dask_elastic.planning.cores.assign_cores`, checked.

    Parameters
    ----------
    current : numpy.ndarray of int, nodes × executors
        Cores that each executor has now.
    needed : numpy.ndarray of int
        Cores that each executor must get: those wanted, or its last one.
    capacity : numpy.ndarray of int
        Cores of each node.
    state : numpy.ndarray of float
        Bytes of state of each executor.
    home : numpy.ndarray of int
        Node of each executor's main process.
    intensity : numpy.ndarray of float
        Bytes in and out per second and core of each executor.
    """

    current: Cores
    needed: Cores
    capacity: Cores
    state: Amounts
    home: Cores
    intensity: Amounts


def locality(problem: CoreProblem, threshold: float, doublings: int) -> tuple[float, NDArray[np.bool_]]:
    """Return the lowest threshold that can be kept, and who is data-intensive by it.

    Parameters
    ----------
    problem : CoreProblem
        What is wanted, and where there are cores.
    threshold : float
        The data intensity to begin with, in bytes per second and core.
    doublings : int
        How often it may be doubled.

    Returns
    -------
    tuple of float and numpy.ndarray of bool
        The threshold, and whether each executor is above it.

    Raises
    ------
    Infeasible
        If more cores are wanted than exist, or the data-intensive do not fit at home after all doublings.
    PlanningError
        If the threshold is not above 0 or the doublings are negative.
    """
    if not (is_number(threshold) and threshold > 0 and is_whole(doublings) and doublings >= 0):
        raise PlanningError(f"threshold is {threshold!r}, doublings {doublings!r}: give above 0, and 0 or more.")
    wanted, existing = int(problem.needed.sum()), int(problem.capacity.sum())
    if wanted > existing:
        raise Infeasible("(b) X >= k", f"{wanted} cores are wanted, but {existing} exist; want fewer or add nodes.")
    reached = float(threshold)
    for doubling in range(doublings + 1):
        reached *= 2 if doubling else 1
        intensive = problem.intensity > reached
        at_home = np.bincount(problem.home[intensive], problem.needed[intensive], len(problem.capacity))
        crowded = np.flatnonzero(at_home > problem.capacity)
        if not crowded.size:
            return reached, intensive
    node = int(crowded[0])
    raise Infeasible(
        "(c) computation locality",
        f"executors at home on node {node} with an intensity above {reached:g} bytes/s want {int(at_home[node])} cores "
        f"there, but it has {int(problem.capacity[node])}; allow more than {doublings} doublings or want fewer.",
    )


def keeps(problem: CoreProblem, intensive: NDArray[np.bool_], assignment: Cores) -> bool:
    """Return whether an assignment keeps (a), (b) and (c)."""
    totals, bound = assignment.sum(axis=0), np.flatnonzero(intensive)
    fits = (assignment.sum(axis=1) <= problem.capacity).all() and (totals >= problem.needed).all()
    return bool(fits and (assignment[problem.home[bound], bound] == totals[bound]).all())


def counts(name: str, values: ArrayLike, dimensions: int, shape: tuple[int, ...] | None = None) -> Cores:
    """Return whole numbers of 0 or more as an array.

    Raises
    ------
    PlanningError
        If the shape is another, or an entry negative, not finite or not whole; names the value.

    Examples
    --------
    >>> counts("wanted", [2.0, 1.0], dimensions=1).tolist()
    [2, 1]
    """
    array = as_array(name, values)
    if array.dtype.kind in "iu":
        wrong = array[array < 0]
    else:
        array = amounts(name, values, shape or array.shape)
        wrong = array[array % 1 != 0]
    if array.ndim != dimensions or array.shape != (shape or array.shape):
        raise PlanningError(f"{name} has shape {array.shape}: give {shape or 'nodes x executors'}.")
    if wrong.size:
        raise PlanningError(f"{name} contains {wrong[0].item()!r}: give whole numbers of 0 or more.")
    return array.astype(np.int64, copy=False)


def amounts(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Amounts:
    """Return finite numbers of 0 or more as an array.

    Raises
    ------
    PlanningError
        If the shape is another, or an entry negative or not finite; names the value.

    Examples
    --------
    >>> amounts("state_bytes", [5, 0], shape=(2,)).tolist()
    [5.0, 0.0]
    """
    array = as_floats(name, values)
    if array.shape != shape:
        raise PlanningError(f"{name} has shape {array.shape}: give {shape}.")
    wrong = array[~(np.isfinite(array) & (array >= 0))]
    if wrong.size:
        raise PlanningError(f"{name} contains {float(wrong[0])!r}: give finite numbers of 0 or more.")
    return array
