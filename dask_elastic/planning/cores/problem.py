"""The problem of assigning cores to executors, and its three constraints.

Notes
-----
Elasticutor, section 4.2: (a) a node's cores suffice, (b) X ≥ k for every executor, (c) data-intensive executors have
all cores at home. Third and fifth erratum: an executor's last core counts as wanted; data intensity is bytes in and out
per second and core, with a threshold of 512 KB/s that is doubled until (c) can be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.planning.cores.columns import CoreColumns, Cores
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import Infeasible, PlanningError
from dask_elastic.vocab.numbers import as_array, as_floats, check_total, is_number, is_whole

Amounts = NDArray[np.float64]

MOST_CORES = 1 << 20
"""The most cores in total, of all nodes or of all executors: searches take a step for each core."""


@dataclass(frozen=True, eq=False)
class CoreProblem:
    """The cores that executors have, the cores that they are granted, and the nodes that have them.

    Parameters
    ----------
    current : array of int, nodes × executors, or CoreColumns
        Cores that each executor has now.
    granted : array of int
        Cores that each executor gets at least.
    capacity : array of int
        Cores of each node that these executors may use. Their sum is at least the sum of the granted cores; see
        `dask_elastic.control.assignment.with_room`.
    state_bytes : array of float
        State of each executor, in bytes.
    home : array of int
        Node of each executor's home.
    intensity : array of float
        Bytes in and out per second and core of each executor.
    threshold : float
        Intensity above which an executor has all cores at its home.
    pause : callable
        Called between steps, about every millisecond of work, so that the caller can yield to an event loop.

    Raises
    ------
    PlanningError
        If shapes disagree. Planners check the values.

    Notes
    -----
    Elasticutor, section 4.2.

    Examples
    --------
    >>> two_nodes, one_executor = np.array([[1], [0]]), np.array([2])
    >>> CoreProblem(two_nodes, one_executor, np.array([1, 1]), np.array([1e6]), np.array([0]), np.array([0.0])).needed
    array([2])
    """

    current: Cores | CoreColumns
    granted: Cores
    capacity: Cores
    state_bytes: Amounts
    home: Cores
    intensity: Amounts
    threshold: float = 512 * 1024
    pause: Callable[[], None] = no_pause

    def __post_init__(self) -> None:
        nodes, executors = self.current.shape
        for name in ("granted", "state_bytes", "home", "intensity"):
            if getattr(self, name).shape != (executors,):
                raise PlanningError(f"{name} has shape {getattr(self, name).shape}: there are {executors} executors.")
        if self.capacity.shape != (nodes,):
            raise PlanningError(f"capacity has shape {self.capacity.shape}: there are {nodes} nodes.")

    @cached_property
    def columns(self) -> CoreColumns:
        """Cores that each executor has now, by node."""
        return self.current if isinstance(self.current, CoreColumns) else CoreColumns.of(self.current)

    @cached_property
    def needed(self) -> Cores:
        """Cores that each executor must get: those granted, and at least one where it has any."""
        needed: Cores = np.maximum(self.granted, np.minimum(self.columns.totals, 1))
        return needed

    def take(self, chosen: NDArray[np.bool_], capacity: Cores) -> CoreProblem:
        """Return the problem of some of the executors.

        Parameters
        ----------
        chosen : array of bool
            The executors.
        capacity : array of int
            Cores of each node that they may use.

        Returns
        -------
        CoreProblem
            The problem with these executors only, in the same order.
        """
        parts = {name: getattr(self, name)[chosen] for name in ("granted", "state_bytes", "home", "intensity")}
        return replace(self, current=self.columns.take(chosen), capacity=capacity, **parts)


def locality(problem: CoreProblem, threshold: float, doublings: int) -> tuple[float, NDArray[np.bool_]]:
    """Return the lowest threshold that can be kept, and the executors above it.

    Parameters
    ----------
    problem : CoreProblem
        The executors and the cores.
    threshold : float
        The data intensity to begin with, in bytes per second and core.
    doublings : int
        The most doublings of the threshold.

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


def keeps(problem: CoreProblem, intensive: NDArray[np.bool_], assignment: CoreColumns) -> bool:
    """Return whether an assignment keeps (a), (b) and (c)."""
    totals, bound = assignment.totals, np.flatnonzero(intensive)
    fits = (assignment.per_node <= problem.capacity).all() and (totals >= problem.needed).all()
    return bool(fits and (assignment.at(problem.home[bound], bound) == totals[bound]).all())


def counts(name: str, values: ArrayLike, dimensions: int, shape: tuple[int, ...] | None = None) -> Cores:
    """Return numbers of cores as an array.

    Raises
    ------
    PlanningError
        If the shape is wrong, an entry is negative, not finite or not whole, or their sum exceeds `MOST_CORES`; names
        the value.

    Examples
    --------
    >>> counts("wanted", [2.0, 1.0], dimensions=1).tolist()
    [2, 1]
    """
    array = _whole(name, values, dimensions, shape)
    # No entry overflows a float, nor does their sum.
    total = float(array.sum(dtype=np.float64))
    if total > MOST_CORES:
        raise PlanningError(f"{name} adds up to {total:.6g} cores: give at most {MOST_CORES}.")
    return array.astype(np.int64, copy=False)


def indices(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Cores:
    """Return indices of nodes as an array.

    Raises
    ------
    PlanningError
        If the shape is wrong, or an entry is negative or not whole; names the value.

    Examples
    --------
    >>> indices("home", [1, 0], shape=(2,)).tolist()
    [1, 0]
    """
    array = _whole(name, values, 1, shape)
    if (array > np.iinfo(np.int64).max / 2).any():
        raise PlanningError(f"{name} contains {array.max().item()!r}: give indices of nodes.")
    return array.astype(np.int64, copy=False)


def _whole(name: str, values: ArrayLike, dimensions: int, shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Return whole numbers of 0 or more, of whatever type they have."""
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
    return array


def amounts(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Amounts:
    """Return finite numbers of 0 or more as an array.

    Raises
    ------
    PlanningError
        If the shape is wrong, or an entry negative or not finite; names the value.

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
    check_total(name, array)
    return array
