"""Assigns cores of nodes to the executors of all jobs, by core planners that the jobs choose by name.

Goal
    Every executor has the cores that it is granted, on nodes that have them; little state moves; data-intensive
    executors have their cores at home, or else on the home's host.
Method
    GIL-bound executors get their cores first, spread over the nodes. The planner assigns the cores of all others. Then
    a surplus that has lasted is released, and cores added on another host are exchanged for nearer ones. Both save
    state and traffic; executors of a planner that works first fit have no part in the exchange, and release cores of
    the first nodes. Where executors outnumber slots, slots are shared: nodes count as larger than they are, by as many
    cores as are missing.
Not done
    How many cores each executor should have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.proximity import nearer
from dask_elastic.control.spreading import spread
from dask_elastic.planning.cores.check import validate
from dask_elastic.planning.cores.columns import CoreColumns, Cores
from dask_elastic.planning.cores.naive import released_first_fit
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.planning.cores.surplus import released
from dask_elastic.planning.registry import planner


def assign(
    problem: CoreProblem, planners: Sequence[str], keep: Cores, per_node: Cores, hosts: Sequence[str], seed: int = 0
) -> CoreColumns:
    """Assign cores to the executors of all jobs.

    Parameters
    ----------
    problem : CoreProblem
        The executors, and the cores that they may use.
    planners : sequence of str
        The core planner of each executor.
    keep : array of int
        Cores that each executor keeps where no other executor needs them; a surplus beyond is released.
    per_node : array of int
        The most cores of one node that each executor may have; 0 for any number.
    hosts : sequence of str
        The machine of each node.
    seed : int
        The planners' seed.

    Returns
    -------
    CoreColumns
        At least one core for each executor, at least as many as are granted, and no more on a node than it has, unless
        slots have to be shared.

    Raises
    ------
    InvalidPlan
        If a planner's answer breaks one of these.
    UnknownPlanner
        If no core planner has a name.
    """
    bound, current = per_node > 0, problem.columns
    cores, left, free = current, problem.capacity, ~bound
    if bound.any():
        places = spread(
            current.take(bound),
            problem.granted[bound],
            _affordable(problem, keep, bound),
            per_node[bound],
            left,
            problem.home[bound],
            hosts,
            occupied=current.take(free).per_node,
        )
        cores = cores.put(bound, places)
        left = left - places.per_node
    names = sorted({name for name, taken in zip(planners, bound.tolist(), strict=True) if not taken})
    numbers = {name: number for number, name in enumerate(names)}
    of = np.array([numbers.get(name, len(names)) for name in planners], dtype=np.int64)
    first_fit = np.zeros(len(planners), dtype=np.bool_)
    for position, name in enumerate(names):
        chosen, later = free & (of == position), free & (of > position)
        part = problem.take(chosen, _without(problem, later, left))
        chooses = planner(name, "cores")
        first_fit |= chosen & chooses.first_fit
        solution = chooses.plan(part, seed)
        problem.pause()
        validate(part, solution, name)
        cores = cores.put(chosen, solution.columns)
        left = left - solution.columns.per_node
    kept, saving = np.maximum(keep, problem.granted), free & ~first_fit
    problem.pause()
    left_over = released(cores.take(saving), kept[saving], problem.state_bytes[saving], problem.home[saving])
    cores = cores.put(saving, left_over)
    if first_fit.any():
        cores = cores.put(first_fit, released_first_fit(cores.take(first_fit), kept[first_fit]))
    fixed = bound | first_fit
    problem.pause()
    return nearer(current, cores, problem.capacity, problem.state_bytes, problem.home, hosts, fixed, problem.pause)


def _affordable(problem: CoreProblem, keep: Cores, chosen: NDArray[np.bool_]) -> Cores:
    """Return the cores that some executors may keep while all others still get what they are granted."""
    spare = int(problem.capacity.sum() - np.maximum(problem.granted, 1).sum())
    kept = problem.granted[chosen].copy()
    for executor, wish in enumerate((keep[chosen] - kept).tolist()):
        more = min(max(wish, 0), spare)
        kept[executor] += more
        spare -= more
    return kept


def with_room(problem: CoreProblem, slots: Cores) -> CoreProblem:
    """Count nodes as larger where executors outnumber the slots.

    Parameters
    ----------
    problem : CoreProblem
        The executors, and the cores that are left for them.
    slots : array of int
        Cores of each node, 0 where executors may have none; at least one node has one.

    Returns
    -------
    CoreProblem
        With the capacity that is granted beyond what exists: first on nodes where executors are already, then where
        the fewest executors share a slot.
    """
    lacking = int(np.maximum(problem.granted, 1).sum() - problem.capacity.sum())
    if lacking <= 0:
        return problem
    capacity: list[int] = problem.capacity.tolist()
    usable = np.flatnonzero(slots > 0).tolist()
    held = problem.columns.per_node.tolist()
    over = [(capacity[node] - held[node], node) for node in usable]
    heapify(over)
    while lacking and over[0][0] < 0:
        short, node = over[0]
        heapreplace(over, (short + 1, node))
        capacity[node] += 1
        lacking -= 1
    counts = slots.tolist()
    crowd = [((capacity[node] + 1) / counts[node], node) for node in usable]
    heapify(crowd)
    for _ in range(lacking):
        node = crowd[0][1]
        capacity[node] += 1
        heapreplace(crowd, ((capacity[node] + 1) / counts[node], node))
    return replace(problem, capacity=np.array(capacity, dtype=np.int64))


def _without(problem: CoreProblem, later: NDArray[np.bool_], capacity: Cores) -> Cores:
    """Return the cores left after reserving what executors of planners that run later are granted."""
    if not later.any():
        return capacity
    current = problem.columns.take(later)
    held = released(current, problem.granted[later], problem.state_bytes[later], problem.home[later])
    owed = np.minimum(held.per_node, capacity)
    missing = int(np.maximum(problem.granted[later], 1).sum() - owed.sum())
    for node in np.argsort(owed - capacity, kind="stable").tolist():
        more = min(max(missing, 0), int(capacity[node] - owed[node]))
        owed[node] += more
        missing -= more
    rest: Cores = capacity - owed
    return rest
