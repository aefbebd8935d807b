"""Assigns cores to executors: Elasticutor, section 4.2, Algorithm 1, corrected.

Goal
    Every executor has the cores it wants, data-intensive ones at home, and as little state as possible moves.
Heuristic
    A local search like Algorithm 1; on small problems an exact search follows.
Corrected (second and third erratum to Elasticutor)
    Free cores are donors. Remote cores of data-intensive executors are moved home. No executor is left with
    fewer cores than it wants; one that must leave a node gets another core. Costs are those of the whole change, not of
    one step.
Not done
    Surplus cores are not released: (b) is X ≥ k, so a core that no other executor needs stays where it is. By the third
    erratum a surplus beyond hysteresis is released explicitly: `dask_elastic.planning.cores.surplus` does that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.cores.columns import CoreColumns, Cores
from dask_elastic.planning.cores.exact import exact
from dask_elastic.planning.cores.problem import Amounts, CoreProblem, amounts, counts, indices, keeps, locality
from dask_elastic.planning.cores.search import CoreSearch
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError

_DOUBLINGS = 40
"""The most doublings of the threshold of data intensity, by default: its last value is above any rate."""


@dataclass(frozen=True, eq=False, init=False)
class CoreAssignment:
    """An assignment of cores, and its cost.

    Parameters
    ----------
    assignment : array of int, nodes × executors, or CoreColumns
        Cores of each node that each executor has.
    cost : float
        Bytes of state that move to get there.
    threshold : float
        The data intensity above which executors have all cores at home, after doubling; infinite where no executor is
        kept at home.

    Raises
    ------
    PlanningError
        If the cost is negative or not finite, or the threshold is not above 0.

    Examples
    --------
    >>> CoreAssignment(np.array([[1], [1]]), cost=5e5, threshold=512 * 1024).assignment.sum()
    np.int64(2)
    """

    columns: CoreColumns
    cost: float
    threshold: float

    def __init__(self, assignment: ArrayLike | CoreColumns, cost: float, threshold: float):
        if not (math.isfinite(cost) and cost >= 0 and threshold > 0):
            raise PlanningError(f"cost is {cost!r}, threshold {threshold!r}: neither may be negative or NaN.")
        if not isinstance(assignment, CoreColumns):
            assignment = CoreColumns.of(counts("assignment", assignment, 2))
        for name, value in (("columns", assignment), ("cost", cost), ("threshold", threshold)):
            object.__setattr__(self, name, value)

    @cached_property
    def assignment(self) -> Cores:
        """Cores of each node that each executor has, nodes × executors."""
        return self.columns.matrix


def migration_cost(old: ArrayLike, new: ArrayLike, state_bytes: ArrayLike) -> float:
    """Return the bytes of state that leave their node when an assignment changes.

    Parameters
    ----------
    old, new : array of int, nodes × executors
        Cores before and after.
    state_bytes : array of float
        State of each executor, spread evenly over its cores.

    Returns
    -------
    float
        Bytes. An executor without cores before has no state to move; one without cores after moves all of it.

    Raises
    ------
    PlanningError
        If shapes disagree or an entry is negative, not finite or, among the cores, not whole.

    Notes
    -----
    Elasticutor, section 4.2: C(X | X̃) = Σ_j Σ_i max(0, s_j x̃_ij / X̃_j - s_j x_ij / X_j).

    Examples
    --------
    >>> migration_cost([[2], [0]], [[2], [2]], [300.0])
    150.0
    """
    before = counts("old", old, 2)
    after, state = counts("new", new, 2, before.shape), amounts("state_bytes", state_bytes, before.shape[1:])
    return _cost(CoreColumns.of(before), CoreColumns.of(after), state)


def _cost(before: CoreColumns, after: CoreColumns, state_bytes: Amounts) -> float:
    nodes, executors, cores = before.entries
    changed = np.array([old is not new for old, new in zip(before.columns, after.columns, strict=True)], dtype=np.bool_)
    leaves, found = np.zeros(len(cores)), changed[executors]
    nodes, of = nodes[found], executors[found]
    stays = after.at(nodes, of) / np.maximum(after.totals, 1)[of]
    leaves[found] = np.maximum(cores[found] / before.totals[of] - stays, 0.0)
    return float((leaves * state_bytes[executors]).sum())


def assign_cores(
    current: ArrayLike,
    wanted: ArrayLike,
    capacity: ArrayLike,
    state_bytes: ArrayLike,
    home: ArrayLike,
    intensity: ArrayLike,
    threshold: float = 512 * 1024,
    doublings: int = _DOUBLINGS,
) -> CoreAssignment:
    """Assign to every executor the cores it wants; little state moves, and data-intensive executors stay at home.

    Parameters
    ----------
    current : array of int, nodes × executors
        Cores that each executor has now. It may break any of the constraints.
    wanted : array of int
        Cores k that each executor wants. One that has a core keeps at least one, whatever it wants.
    capacity : array of int
        Cores of each node.
    state_bytes : array of float
        State of each executor.
    home : array of int
        Node of each executor's main process.
    intensity : array of float
        Data intensity of each executor: bytes in and out per second and core.
    threshold : float
        Executors of a higher data intensity than this must have all cores at home.
    doublings : int
        The most doublings of the threshold where not all of them fit there.

    Returns
    -------
    CoreAssignment
        An assignment that keeps (a) the capacity of each node, (b) at least the cores wanted, and (c) the cores of
        data-intensive executors at home; with its cost and the threshold used.

    Raises
    ------
    Infeasible
        If more cores are wanted than exist, or data-intensive executors do not fit at home after all doublings.
    PlanningError
        If shapes disagree, an entry is negative or not finite, a core count is not whole, or a home is no node.

    Notes
    -----
    Elasticutor, section 4.2, with the second, third and fifth erratum. A threshold can be kept exactly if the cores
    that data-intensive executors want fit at each home and all wanted cores fit in the cluster: doubling needs no
    search. (b) is a lower bound: an executor keeps a surplus that no other needs, and may get one core more than it
    wants where that moves less state. An assignment that keeps the constraints is returned as it is. With few ways to
    fill the nodes (4 nodes of 8 cores, for example) the result is optimal, and changes few cores among optimal ones.

    Examples
    --------
    >>> plan = assign_cores([[2, 1], [0, 1]], [2, 3], [4, 2], [600.0, 600.0], home=[0, 1], intensity=[0.0, 0.0])
    >>> plan.assignment.tolist(), plan.cost, plan.threshold
    ([[2, 2], [0, 2]], 0.0, 524288.0)
    """
    return _assigned(_problem(current, wanted, capacity, state_bytes, home, intensity, threshold), doublings)


def _problem(
    current: ArrayLike | CoreColumns,
    wanted: ArrayLike,
    capacity: ArrayLike,
    state_bytes: ArrayLike,
    home: ArrayLike,
    intensity: ArrayLike,
    threshold: float,
    pause: Callable[[], None] = no_pause,
) -> CoreProblem:
    """Return a problem whose values are checked."""
    held = current if isinstance(current, CoreColumns) else CoreColumns.of(counts("current", current, 2))
    node, executor = held.shape[:1], held.shape[1:]
    homes = indices("home", home, executor)
    if (homes >= node[0]).any():
        raise PlanningError(f"home contains {int(homes.max())}, but the last of {node[0]} nodes is {node[0] - 1}.")
    return CoreProblem(
        held,
        counts("wanted", wanted, 1, executor),
        counts("capacity", capacity, 1, node),
        amounts("state_bytes", state_bytes, executor),
        homes,
        amounts("intensity", intensity, executor),
        threshold,
        pause,
    )


def assignment_of(problem: CoreProblem) -> CoreAssignment:
    """Return the assignment for a problem; see `assign_cores`.

    Parameters
    ----------
    problem : CoreProblem
        The executors and the cores.

    Returns
    -------
    CoreAssignment
        The assignment, its cost, and the threshold that could be kept.

    Raises
    ------
    Infeasible
        If more cores are granted than exist, or data-intensive executors do not fit at home.
    PlanningError
        If an entry is negative or not finite, or a home is no node.
    """
    return _assigned(
        _problem(
            problem.current, problem.granted, problem.capacity, problem.state_bytes, problem.home, problem.intensity,
            problem.threshold, problem.pause,
        ),
        _DOUBLINGS,
    )  # fmt: skip


def _assigned(problem: CoreProblem, doublings: int) -> CoreAssignment:
    reached, intensive = locality(problem, problem.threshold, doublings)
    held = problem.columns
    if keeps(problem, intensive, held):
        return CoreAssignment(held, 0.0, reached)
    searched = CoreSearch(problem, intensive).run()
    problem.pause()
    found = exact(problem, intensive, searched)
    problem.pause()
    assert keeps(problem, intensive, found), "an assignment breaks its constraints"
    return CoreAssignment(found, _cost(held, found, problem.state_bytes), reached)
