"""A topology as a Jackson network of M/M/k queues: its latency, its arrival rates, and the cores it needs.

Goal
    The fewest cores for which the expected latency is within the target.
Method
    Elasticutor, section 4.1: starting from the smallest stable allocation, give one core at a time to the executor
    where it lowers the latency most. Latency is convex in the cores of each executor, so this is optimal. The start is
    ⌊λ/μ⌋+1; the paper's ⌈λ/μ⌉+1 is not the smallest stable allocation (first erratum).
Not done
    The placement of cores on nodes: `planning.cores`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.model import shortage
from dask_elastic.model.bulk_steps import MANY, Greedy, present_in_all
from dask_elastic.model.queueing import MOST_SERVERS, erlang_b, next_erlang_b, waiting_customers, whole
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_floats, check_total, is_number

Amounts = NDArray[np.float64]
Cores = NDArray[np.int64]

_SURELY_ABOVE = 1 + 1e-9
"""Relative accuracy of a running sum; closer to the target than this, the latency is summed anew."""

_LEAST_LOSS = 1e-12
"""The fraction of tuples that a loop without any loss can appear to lose, due to rounding."""


@dataclass(frozen=True, eq=False)
class Allocation:
    """Number of cores per executor, and the latency they give.

    Parameters
    ----------
    cores : numpy.ndarray of int
        Cores of each executor.
    latency : float
        The expected mean latency in seconds; ``inf`` if an executor is unstable.
    feasible : bool
        Whether the latency is within the target.

    Raises
    ------
    PlanningError
        If `cores` are not integers of 0 or more, or the latency is negative or NaN.

    Examples
    --------
    >>> Allocation(cores=np.array([4, 3]), latency=0.052, feasible=True).cores.sum()
    np.int64(7)
    """

    cores: NDArray[np.int64]
    latency: float
    feasible: bool

    def __post_init__(self) -> None:
        if self.cores.ndim != 1 or self.cores.dtype.kind not in "iu" or (self.cores < 0).any():
            raise PlanningError(f"cores is {self.cores!r}: give one whole number of 0 or more per executor.")
        if not self.latency >= 0:
            raise PlanningError(f"latency is {self.latency!r}: give 0 or more.")


def expected_latency(
    external: float, arrival: ArrayLike, service: ArrayLike, cores: ArrayLike, *, weight: ArrayLike | None = None
) -> float:
    """Return the mean total time that an input tuple and the tuples derived from it spend in the topology.

    Parameters
    ----------
    external : float
        Total rate λ₀ at which tuples enter the topology, per second.
    arrival : array of float
        Arrival rate λ_j of each executor.
    service : array of float
        Service rate μ_j of one core of each executor.
    cores : array of int
        Cores k_j of each executor.
    weight : array of float, optional
        Tuples per customer of each executor; 1 by default. If the customers are sub-batches, `arrival` and `service`
        are rates of sub-batches, while `external` is still a rate of tuples.

    Returns
    -------
    float
        Seconds; ``inf`` if an executor is unstable, 0 if no tuples enter or arrive. An executor without arrivals adds
        nothing, whatever its cores.

    Raises
    ------
    PlanningError
        If a rate is negative or not finite, a service rate is 0, a number of cores is negative or not whole, the
        lengths differ, or tuples arrive although none enter.

    Notes
    -----
    Elasticutor, section 4.1, eq. (1): E[T] = (1/λ₀) Σ λ_j E[T_j](k_j). By Little's law, the terms λ_j E[T_j] are the
    mean numbers of tuples in the executors. When a customer of r tuples waits, r tuples wait; with weights the sum is
    therefore (1/λ₀) Σ r_j λ_j E[T_j](k_j).

    Examples
    --------
    >>> expected_latency(1.0, [1.0, 1.0], [2.0, 2.0], [1, 1])
    2.0
    >>> expected_latency(50.0, [1.0], [2.0], [1], weight=[50.0])
    1.0
    """
    loads = _loads(external, arrival, service)
    weights = _weights(weight, len(loads))
    counts = _vector("cores", cores)
    if len(counts) != len(loads):
        raise PlanningError(f"cores has {len(counts)} entries for {len(loads)} executors: give one per executor.")
    wrong = counts[(counts % 1 != 0) | (counts > MOST_SERVERS)]
    if wrong.size:
        raise PlanningError(f"cores is {float(wrong[0])!r}: give whole numbers of at most {MOST_SERVERS}.")
    present = _in_all(loads, weights, counts.astype(np.int64))[1]
    return _latency(external, math.fsum(present.tolist()))


def allocate(
    external: float,
    arrival: ArrayLike,
    service: ArrayLike,
    latency_target: float,
    available: int,
    *,
    weight: ArrayLike | None = None,
) -> Allocation:
    """Find the fewest cores that keep the expected latency within the target.

    Parameters
    ----------
    external : float
        Total rate λ₀ at which tuples enter the topology, per second.
    arrival : array of float
        Arrival rate λ_j of each executor.
    service : array of float
        Service rate μ_j of one core of each executor.
    latency_target : float
        The largest acceptable mean latency in seconds.
    available : int
        Number of cores.
    weight : array of float, optional
        Tuples per customer of each executor; 1 by default. See `expected_latency`.

    Returns
    -------
    Allocation
        At least one core per executor, at most `available` in total. If the target cannot be met, all cores that lower
        the latency are allocated, where they lower it most. If the cores are too few for stability, they are allocated
        in proportion to λ_j/μ_j, which minimises the largest load per core, and the latency is ``inf``.

    Raises
    ------
    PlanningError
        If a rate is negative or not finite, a service rate is 0, the lengths differ, the target is not above 0, or
        there are fewer cores than executors.

    Notes
    -----
    Elasticutor, section 4.1, with its first erratum: the greedy starts at ⌊λ/μ⌋+1. Ties go to the executor of lower
    number.

    Examples
    --------
    >>> allocation = allocate(10.0, [10.0, 10.0], [4.0, 20.0], latency_target=0.5, available=8)
    >>> allocation.cores.tolist(), round(allocation.latency, 3), allocation.feasible
    ([4, 1], 0.403, True)
    """
    loads = _loads(external, arrival, service)
    weights = _weights(weight, len(loads))
    limit = whole("available", available, MOST_SERVERS)
    if not (is_number(latency_target) and latency_target > 0):
        raise PlanningError(f"latency_target is {latency_target!r}: give seconds above 0.")
    if limit < len(loads):
        raise PlanningError(f"available is {limit}, but {len(loads)} executors need one core each.")
    # Loads above the limit need more cores than there are, however large they are.
    cores = np.minimum(loads, limit).astype(np.int64) + 1
    if int(cores.sum()) > limit:
        return Allocation(shortage.divide(loads, limit), math.inf, False)
    cores, present = _add_cores(external, loads, weights, cores, latency_target, limit)
    latency = _latency(external, math.fsum(present.tolist()))
    return Allocation(cores, latency, bool(latency <= latency_target))


def _add_cores(
    external: float, loads: Amounts, weights: Amounts, cores: Cores, target: float, limit: int
) -> tuple[Cores, Amounts]:
    """Add cores until the target or the limit is reached; return them, and the mean number of tuples at each one."""
    blocking, present = _in_all(loads, weights, cores)
    state = Greedy(loads, weights, cores, blocking, present, math.fsum(present.tolist()))
    wanted = target * external
    spare = limit - int(cores.sum())
    spare -= state.advance(spare, wanted * _SURELY_ABOVE)
    reached = state.total <= wanted * _SURELY_ABOVE and _latency(external, math.fsum(state.present.tolist())) <= target
    if spare and not reached:
        _add_singly(external, state, target, spare)
    return state.cores, state.present


def _add_singly(external: float, state: Greedy, target: float, spare: int) -> None:
    """Add one core after another until the target is reached, `spare` are added, or more do not help."""
    loads, weights, cores, present = (
        array.tolist() for array in (state.loads, state.weights, state.cores, state.present)
    )
    erlang, waiting_for = state.ahead(1)
    changes = state.weights * (waiting_for[:, 1] - waiting_for[:, 0])
    heap = list(
        zip(changes.tolist(), range(len(loads)), erlang[:, 1].tolist(), waiting_for[:, 1].tolist(), strict=True)
    )
    heapify(heap)
    total, wanted = state.total, target * external
    while spare and heap:
        if total <= wanted * _SURELY_ABOVE:
            total = math.fsum(present)
            if _latency(external, total) <= target:
                break
        change, executor, blocked, before = heap[0]
        if change >= 0:
            break
        cores[executor] += 1
        spare -= 1
        load, tuples, count = loads[executor], weights[executor], cores[executor]
        was, present[executor] = present[executor], tuples * (load + before)
        total += present[executor] - was
        after = next_erlang_b(load, count + 1, blocked)
        waiting = waiting_customers(load, count + 1, after)
        # The (negative) change in the number of waiting tuples, without the cancellation of a difference of sums.
        heapreplace(heap, (tuples * (waiting - before), executor, after, waiting))
    state.cores, state.present = np.array(cores, dtype=np.int64), np.array(present)


def _in_all(loads: Amounts, weights: Amounts, servers: Cores) -> tuple[Amounts, Amounts]:
    """Return Erlang B of each executor, 1 where it is unstable, and the mean number of tuples in it."""
    if len(loads) >= MANY:
        return present_in_all(loads, weights, servers)
    blocked, found = np.ones(len(loads)), np.empty(len(loads))
    executors = zip(loads.tolist(), weights.tolist(), servers.tolist(), strict=True)
    for executor, (load, tuples, count) in enumerate(executors):
        if load < count:
            blocked[executor] = blocking = erlang_b(load, count)
            found[executor] = tuples * (load + waiting_customers(load, count, blocking))
        else:
            found[executor] = math.inf if load > 0 else 0.0
    return blocked, found


def _latency(external: float, present: float) -> float:
    """Return the latency with so many tuples at all executors, by Little's law."""
    return present / external if present > 0 else 0.0


def arrivals(external_by_operator: ArrayLike, routing: ArrayLike) -> NDArray[np.float64]:
    """Return the arrival rate of each operator, by the traffic equations.

    Parameters
    ----------
    external_by_operator : array of float
        Rate at which tuples enter each operator from outside.
    routing : array of float, operators × operators
        ``routing[i, j]``: tuples sent to operator j per tuple processed by operator i. Rows may sum to more than 1, and
        loops are allowed.

    Returns
    -------
    numpy.ndarray of float
        The rates λ with λ_j = external_j + Σ_i λ_i · routing[i, j].

    Raises
    ------
    PlanningError
        If an entry is negative or not finite, the shapes disagree, or a loop returns at least as many tuples as enter
        it, so that the rates grow without bound (the spectral radius of `routing` is 1 or more).

    Notes
    -----
    Traffic equations of an open Jackson network (Elasticutor, section 4.1). I − routingᵀ is eliminated without
    pivoting: all pivots are positive if and only if the spectral radius is below 1, there is no cancellation outside of
    loops, and a pivot is the fraction of an operator's tuples that do not return to it.

    Examples
    --------
    >>> arrivals([10.0, 0.0], [[0.0, 2.0], [0.25, 0.0]]).tolist()
    [20.0, 40.0]
    """
    rates = _vector("external_by_operator", external_by_operator).copy()
    share = as_floats("routing", routing)
    count = len(rates)
    if share.shape != (count, count):
        raise PlanningError(f"routing has shape {share.shape}: give {count} x {count} for {count} operators.")
    wrong = np.argwhere(~(np.isfinite(share) & (share >= 0)))
    if len(wrong):
        source, target = wrong[0].tolist()
        value = float(share[source, target])
        raise PlanningError(f"routing[{source}, {target}] is {value!r}: give a finite number of 0 or more.")
    with np.errstate(over="ignore", invalid="ignore"):
        _solve(np.eye(count) - share.T, rates)
    if not np.isfinite(rates).all():
        raise PlanningError("the arrival rates exceed what a float holds: give rates in a larger unit of time.")
    return rates


def _solve(matrix: NDArray[np.float64], rates: NDArray[np.float64]) -> None:
    """Solve matrix · x = rates in place, without pivoting."""
    count = len(rates)
    for k in range(count):
        pivot = float(matrix[k, k])
        if pivot <= _LEAST_LOSS:
            raise PlanningError(
                f"operator {k} gets {1 - pivot:.6g} tuples back for each tuple it processes: a loop must return fewer "
                "than 1, or its rates grow without bound."
            )
        factor = matrix[k + 1 :, k] / pivot
        matrix[k + 1 :, k + 1 :] -= np.outer(factor, matrix[k, k + 1 :])
        rates[k + 1 :] -= factor * rates[k]
    for k in reversed(range(count)):
        rates[k] = (rates[k] - matrix[k, k + 1 :] @ rates[k + 1 :]) / matrix[k, k]


def _loads(external: float, arrival: ArrayLike, service: ArrayLike) -> Amounts:
    """Check the rates; return λ/μ of each executor."""
    arriving, serving = _vector("arrival", arrival), _vector("service", service)
    if len(arriving) != len(serving):
        raise PlanningError(f"arrival has {len(arriving)} entries, service {len(serving)}: give one per executor.")
    slow = np.flatnonzero(serving == 0)
    if slow.size:
        raise PlanningError(f"service[{int(slow[0])}] is 0.0: give a rate above 0.")
    if not (is_number(external) and 0 <= external < math.inf):
        raise PlanningError(f"external is {external!r}: give a finite rate of 0 or more.")
    if external == 0 and arriving.any():
        raise PlanningError("external is 0, but tuples arrive at executors: give the rate at which tuples enter.")
    with np.errstate(over="ignore"):
        loads = arriving / serving
    if not np.isfinite(loads).all():
        executor = int(np.flatnonzero(~np.isfinite(loads))[0])
        raise PlanningError(f"service[{executor}] is {float(serving[executor])!r}: too small for its arrival rate.")
    check_total("arrival / service", loads)
    return loads


def _weights(weight: ArrayLike | None, executors: int) -> Amounts:
    """Check and return the tuples per customer of each executor, 1 by default."""
    if weight is None:
        return np.ones(executors)
    given = _vector("weight", weight)
    check_total("weight", given)
    if len(given) != executors:
        raise PlanningError(f"weight has {len(given)} entries for {executors} executors: give one per executor.")
    return given


def _vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    vector = as_floats(name, values)
    if vector.ndim != 1:
        raise PlanningError(f"{name} has shape {vector.shape}: give a vector with one number per executor or operator.")
    wrong = np.flatnonzero(~(np.isfinite(vector) & (vector >= 0)))
    if wrong.size:
        value = float(vector[wrong[0]])
        raise PlanningError(f"{name}[{int(wrong[0])}] is {value!r}: give a finite number of 0 or more.")
    return vector
