"""MTM-aware migration: the step with the least cost now plus projected cost of later migrations.

Goal
    The least sum of the cost now and the projected cost later.
Heuristic
    None: every partitioning within the load limit is evaluated.
Not done
    Partitionings without projected costs.

Notes
-----
State migration (Ding et al.), section 5.2. By erratum 4 the projected cost is weighted by γ, which Definition 5.4
omits: only then is the decision that of a single step at γ = 0, as section 6 states.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.intervals.load_limit import check_feasible, checked_nodes, checked_tau, load_limit
from dask_elastic.planning.intervals.partitionings import Partitionings
from dask_elastic.planning.intervals.plan import IntervalPlan, assign, bounds_of, checked_intervals, checked_tasks
from dask_elastic.planning.intervals.projected_costs import ProjectedCosts
from dask_elastic.planning.intervals.transition_matrix import transition_matrix
from dask_elastic.planning.intervals.value_iteration import projected_costs
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import Infeasible, PlanningError

__all__ = ["ProjectedCosts", "projected_costs", "single_step_aware", "transition_matrix"]


def single_step_aware(
    load: ArrayLike,
    state_bytes: ArrayLike,
    intervals: ArrayLike,
    nodes: int,
    tau: float,
    projected: ProjectedCosts,
    pause: Callable[[], None] = no_pause,
) -> IntervalPlan:
    """Find the assignment with the least cost now plus discounted projected cost.

    Parameters
    ----------
    load : array of float
        The load of each task, in any unit.
    state_bytes : array of float
        The size of each task's state.
    intervals : array of int, nodes × 2
        The tasks of each node now, half-open; empty for a node without tasks.
    nodes : int
        The number of nodes after the migration.
    tau : float
        How far a node's load may exceed the mean, as a share of it.
    projected : ProjectedCosts
        The projected costs. Empty intervals are allowed if they are allowed there.
    pause : callable
        Called about every millisecond of work.

    Returns
    -------
    IntervalPlan
        With as many rows as `intervals`, or `nodes` if that is more. Its cost is that of this step alone.

    Raises
    ------
    PlanningError
        If an argument is out of range, intervals overlap or leave a gap, or no cost is projected for this number of
        nodes.
    Infeasible
        If no assignment is within the limit, or none of those within it has a projected cost.

    Notes
    -----
    State migration, Definition 5.4 with erratum 4: least c(P, P′) + γ C[P′]. Loads and sizes may have changed since the
    projection: the limit is that of the given loads.

    Examples
    --------
    >>> matrix = {2: {3: 1.0}, 3: {4: 1.0}}
    >>> costs = projected_costs([1] * 20, [1] * 20, matrix, tau=0.4, discount=0.9)
    >>> plan = single_step_aware([1] * 20, [1] * 20, [[0, 13], [13, 20]], 3, 0.4, costs)
    >>> plan.cost, round(costs.cost(plan.tasks_per_interval), 6)
    (4.0, 2.0)
    """
    loads, state = checked_tasks(load, state_bytes)
    before = checked_intervals(intervals, len(loads))
    count = checked_nodes(nodes)
    if projected.tasks != len(loads):
        raise PlanningError(
            f"load is for {len(loads)} tasks, the projected costs for {projected.tasks}: both must agree."
        )
    groups = projected.of_nodes(count)
    check_feasible(loads, count, checked_tau(tau), projected.allow_empty)
    limit = load_limit(loads, count, tau)
    best: tuple[float, Ints] | None = None
    for group in groups:
        pause()
        found = _within(group.partitionings, loads, limit)
        if found.size:
            bounds = group.partitionings.bounds[found]
            now = Partitionings(bounds).costs(state, bounds_of(before)[None, :], pause)[:, 0]
            totals = now + projected.discount * group.costs[found]
            at = int(np.argmin(totals))
            if best is None or totals[at] < best[0]:
                best = float(totals[at]), bounds[at]
    if best is None:
        raise Infeasible(
            "projected costs",
            f"none of the partitionings for {count} nodes with a projected cost keeps the load limit of {limit:.6g} "
            f"(tau {tau!r}): loads have changed too much. Compute the costs anew, or with a tau above "
            f"{projected.tau!r}.",
        )
    return assign(state, before, best[1], count, pause)


def _within(found: Partitionings, load: Floats, limit: float) -> Ints:
    """Return the partitionings whose intervals are within a limit."""
    sums = np.append(0.0, np.cumsum(load))
    first, end = found.distinct
    within = sums[end] - sums[first] <= limit
    result: Ints = np.flatnonzero(within[found.interval].all(axis=1))
    return result
