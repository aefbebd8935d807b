"""Which cores everybody gets: from numbers of cores to nodes, by a core planner that is chosen by name.

Goal
    Every executor has the cores that it is granted, on nodes that have them; little state moves; what sends much data
    is at home, and what cannot be at home is on its host.
Method
    Executors that hold the GIL get theirs first, spread over the nodes. The planner assigns those of all others. Then a
    surplus that has lasted is released, and cores that were added on another host change places with nearer ones.
    Where executors outnumber slots, slots are shared: nodes count as larger than they are, just as much as needed.
Not done
    How many cores anybody should have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.proximity import nearer
from dask_elastic.control.spreading import spread
from dask_elastic.planning.cores.assignment import assign_cores
from dask_elastic.planning.cores.surplus import release
from dask_elastic.vocab.errors import InvalidPlan, PlanningError, UnknownPlanner

Cores = NDArray[np.int64]
Amounts = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CoreProblem:
    """Who has which cores, and how many everybody is granted.

    Parameters
    ----------
    current : array of int, nodes × executors
        Cores that each executor has.
    granted : array of int
        Cores that each is to have at least.
    capacity : array of int
        Cores of each node that there are for these executors; no fewer in all than are granted, see `with_room`.
    state_bytes : array of float
        State of each executor.
    home : array of int
        Node of each executor's home.
    intensity : array of float
        Bytes in and out per second and core of each executor.
    threshold : float
        Intensity above which an executor is to have its cores at home.
    """

    current: Cores
    granted: Cores
    capacity: Cores
    state_bytes: Amounts
    home: Cores
    intensity: Amounts
    threshold: float = 512 * 1024

    def __post_init__(self) -> None:
        nodes, executors = self.current.shape
        for name in ("granted", "state_bytes", "home", "intensity"):
            if getattr(self, name).shape != (executors,):
                raise PlanningError(f"{name} has shape {getattr(self, name).shape}: there are {executors} executors.")
        if self.capacity.shape != (nodes,):
            raise PlanningError(f"capacity has shape {self.capacity.shape}: there are {nodes} nodes.")

    def take(self, chosen: NDArray[np.bool_], capacity: Cores) -> CoreProblem:
        """Return the problem of some of the executors, with the cores that are left for them."""
        parts = {name: getattr(self, name)[chosen] for name in ("granted", "state_bytes", "home", "intensity")}
        return replace(self, current=self.current[:, chosen], capacity=capacity, **parts)


class CorePlanner(Protocol):
    """What every core planner can do."""

    def plan(self, problem: CoreProblem, seed: int = 0) -> Cores:
        """Return cores, nodes × executors: at least those granted, no more on a node than it has."""
        ...


@dataclass(frozen=True)
class Elasticutor:
    """Algorithm 1, mended: little state moves, data-intensive executors stay at home.

    Notes
    -----
    Elasticutor, section 4.2, with the second, third and fifth erratum; see `dask_elastic.planning.cores.assign_cores`.
    """

    def plan(self, problem: CoreProblem, seed: int = 0) -> Cores:
        """Return the assignment; the same for any seed."""
        return assign_cores(
            problem.current,
            problem.granted,
            problem.capacity,
            problem.state_bytes,
            problem.home,
            problem.intensity,
            problem.threshold,
        ).assignment


@dataclass(frozen=True)
class Naive:
    """First fit: cores where the first are, whatever state moves and whatever data then crosses the network.

    Notes
    -----
    What Elasticutor, section 5, compares with: elastic executors without its assignment of cores.
    """

    def plan(self, problem: CoreProblem, seed: int = 0) -> Cores:
        """Return the assignment; the same for any seed."""
        cores = problem.current.copy()
        granted = np.maximum(problem.granted, np.minimum(cores.sum(axis=0), 1))
        for node in range(len(cores)):
            while cores[node].sum() > problem.capacity[node]:
                cores[node, np.flatnonzero(cores[node])[-1]] -= 1
        for executor in range(cores.shape[1]):
            while cores[:, executor].sum() < granted[executor]:
                node, donor = self._first(cores, granted, problem.capacity, executor)
                if donor is not None:
                    cores[node, donor] -= 1
                cores[node, executor] += 1
        return cores

    def _first(self, cores: Cores, granted: Cores, capacity: Cores, taker: int) -> tuple[int, int | None]:
        free = np.flatnonzero(cores.sum(axis=1) < capacity)
        if len(free):
            return int(free[0]), None
        spare = (cores.sum(axis=0) > granted) & (np.arange(cores.shape[1]) != taker)
        node, donor = np.argwhere((cores > 0) & spare & (capacity > 0)[:, None])[0].tolist()
        return node, donor


_PLANNERS: dict[str, CorePlanner] = {"elasticutor": Elasticutor(), "naive": Naive()}


def core_planner_names() -> tuple[str, ...]:
    """Return the names of all core planners, in alphabetical order."""
    return tuple(sorted(_PLANNERS))


def core_planner(name: str) -> CorePlanner:
    """Return the core planner of that name.

    Raises
    ------
    UnknownPlanner
        If none has it; tells the nearest name.

    Examples
    --------
    >>> core_planner("elasticutor")
    Elasticutor()
    >>> core_planner("elastikutor")
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.UnknownPlanner: no core planner is named 'elastikutor': did you mean 'elasticutor'? There
    are elasticutor, naive.
    """
    found = _PLANNERS.get(name)
    if found is None:
        near = get_close_matches(name, core_planner_names(), 1, 0.0)[0]
        known = ", ".join(core_planner_names())
        raise UnknownPlanner(f"no core planner is named {name!r}: did you mean {near!r}? There are {known}.")
    return found


def assign(
    problem: CoreProblem, planners: Sequence[str], keep: Cores, per_node: Cores, hosts: Sequence[str], seed: int = 0
) -> Cores:
    """Assign cores to the executors of all jobs.

    Parameters
    ----------
    problem : CoreProblem
        The executors, and the cores that there are for them.
    planners : sequence of str
        The core planner of each executor.
    keep : array of int
        Cores that each executor keeps where nobody else needs them; a surplus beyond is released.
    per_node : array of int
        Cores of one node that each executor may have at most, 0 for any number.
    hosts : sequence of str
        The machine of each node.
    seed : int
        For planners that draw lots.

    Returns
    -------
    numpy.ndarray of int, nodes × executors
        At least one core for each executor, at least as many as are granted, and no more on a node than it has, unless
        slots have to be shared.

    Raises
    ------
    InvalidPlan
        If a planner's answer breaks one of these.
    """
    bound = per_node > 0
    cores = problem.current.copy()
    left = problem.capacity
    if bound.any():
        cores[:, bound] = spread(
            problem.current[:, bound],
            problem.granted[bound],
            _affordable(problem, keep, bound),
            per_node[bound],
            left,
            problem.home[bound],
            hosts,
            occupied=problem.current[:, ~bound].sum(axis=1),
        )
        left = left - cores[:, bound].sum(axis=1)
    names = sorted({name for name, taken in zip(planners, bound.tolist(), strict=True) if not taken})
    for position, name in enumerate(names):
        chosen = ~bound & (np.array(planners) == name)
        later = ~bound & np.isin(planners, names[position + 1 :])
        part = problem.take(chosen, _without(problem, later, left))
        cores[:, chosen] = _checked(name, part, core_planner(name).plan(part, seed))
        left = left - cores[:, chosen].sum(axis=1)
    free = ~bound
    cores[:, free] = release(
        cores[:, free],
        np.maximum(keep, problem.granted)[free],
        problem.state_bytes[free],
        problem.home[free],
    )
    return nearer(problem.current, cores, problem.capacity, problem.state_bytes, problem.home, hosts, bound)


def _affordable(problem: CoreProblem, keep: Cores, chosen: NDArray[np.bool_]) -> Cores:
    """Return what some executors may keep such that all others get what they are granted."""
    spare = int(problem.capacity.sum() - np.maximum(problem.granted, 1).sum())
    kept = problem.granted[chosen].copy()
    for executor, wish in enumerate((keep[chosen] - kept).tolist()):
        more = min(max(wish, 0), spare)
        kept[executor] += more
        spare -= more
    return kept


def with_room(problem: CoreProblem, slots: Cores) -> CoreProblem:
    """Let nodes count as larger where executors outnumber the slots.

    Parameters
    ----------
    problem : CoreProblem
        The executors, and the cores that are left for them.
    slots : array of int
        Cores of each node, 0 where there are to be none; some node has one.

    Returns
    -------
    CoreProblem
        With as much more capacity as is granted beyond what there is: first where executors are already, then where
        slots are shared by the fewest.
    """
    lacking = int(np.maximum(problem.granted, 1).sum() - problem.capacity.sum())
    if lacking <= 0:
        return problem
    capacity, held = problem.capacity.copy(), problem.current.sum(axis=1)
    for _ in range(lacking):
        over = np.where(slots > 0, held - capacity, -1)
        crowd = np.where(slots > 0, (capacity + 1) / np.maximum(slots, 1), np.inf)
        capacity[int(over.argmax()) if over.max() > 0 else int(crowd.argmin())] += 1
    return replace(problem, capacity=capacity)


def _without(problem: CoreProblem, later: NDArray[np.bool_], capacity: Cores) -> Cores:
    """Return the cores that are left when executors whose planner comes later get what they are granted."""
    if not later.any():
        return capacity
    held = release(problem.current[:, later], problem.granted[later], problem.state_bytes[later], problem.home[later])
    owed = np.minimum(held.sum(axis=1), capacity)
    missing = int(np.maximum(problem.granted[later], 1).sum() - owed.sum())
    for node in np.argsort(owed - capacity, kind="stable").tolist():
        more = min(max(missing, 0), int(capacity[node] - owed[node]))
        owed[node] += more
        missing -= more
    rest: Cores = capacity - owed
    return rest


def _checked(name: str, problem: CoreProblem, cores: Cores) -> Cores:
    """Return a planner's answer, if it keeps the rules."""
    crowded = np.flatnonzero(cores.sum(axis=1) > problem.capacity)
    if crowded.size:
        node = int(crowded[0])
        raise InvalidPlan(
            f"planner {name!r} gives out {int(cores[node].sum())} cores of node {node}, which has "
            f"{int(problem.capacity[node])}."
        )
    short = np.flatnonzero(cores.sum(axis=0) < np.maximum(problem.granted, 1))
    if short.size:
        executor = int(short[0])
        raise InvalidPlan(
            f"planner {name!r} gives executor {executor} {int(cores[:, executor].sum())} cores of "
            f"{int(problem.granted[executor])}."
        )
    return cores
