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
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.cores.exact import exact
from dask_elastic.planning.cores.problem import CoreProblem, Cores, amounts, counts, keeps, locality
from dask_elastic.planning.cores.search import CoreSearch
from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True, eq=False)
class CoreAssignment:
    """An assignment of cores, and its cost.

    Parameters
    ----------
    assignment : numpy.ndarray of int, nodes × executors
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

    assignment: Cores
    cost: float
    threshold: float

    def __post_init__(self) -> None:
        counts("assignment", self.assignment, 2)
        if not (math.isfinite(self.cost) and self.cost >= 0 and self.threshold > 0):
            raise PlanningError(f"cost is {self.cost!r}, threshold {self.threshold!r}: neither may be negative or NaN.")


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
    nodes, executors = np.nonzero(before)
    stays = after[nodes, executors] / np.maximum(after.sum(axis=0), 1)[executors]
    leaves = np.maximum(before[nodes, executors] / before.sum(axis=0)[executors] - stays, 0.0)
    return float((leaves * state[executors]).sum())


def assign_cores(
    current: ArrayLike,
    wanted: ArrayLike,
    capacity: ArrayLike,
    state_bytes: ArrayLike,
    home: ArrayLike,
    intensity: ArrayLike,
    threshold: float = 512 * 1024,
    doublings: int = 40,
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
    cores = counts("current", current, 2)
    node, executor = cores.shape[:1], cores.shape[1:]
    granted = counts("wanted", wanted, 1, executor)
    limits, homes = counts("capacity", capacity, 1, node), counts("home", home, 1, executor)
    if (homes >= node[0]).any():
        raise PlanningError(f"home contains {int(homes.max())}, but the last of {node[0]} nodes is {node[0] - 1}.")
    state = amounts("state_bytes", state_bytes, executor)
    intensities = amounts("intensity", intensity, executor)
    problem = CoreProblem(cores, granted, limits, state, homes, intensities, threshold)
    reached, intensive = locality(problem, threshold, doublings)
    if keeps(problem, intensive, cores):
        return CoreAssignment(cores.copy(), 0.0, reached)
    assignment = exact(problem, intensive, CoreSearch(problem, intensive).run())
    assert keeps(problem, intensive, assignment), "an assignment breaks its constraints"
    return CoreAssignment(assignment, migration_cost(cores, assignment, state), reached)
