"""Placements where each node is the home of consecutive executors, planned by the interval planners.

Goal
    SSM, OMS and MTM decide about the homes of a job as about tasks of an operator.
Method
    The executors of the job, in the order of operators and numbers, are the tasks. State on retiring nodes moves in any
    case, so it costs nothing in the plan; its intervals are then matched to the nodes that stay.
Not done
    Budgets, pins, nodes of different capacity, and other jobs, which the planners do not know. A migration is planned
    only if the number of nodes or the loads require it.

Notes
-----
State migration (Ding et al.), Definitions 4.1, 5.1 and 5.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb

import numpy as np

from dask_elastic.control.placement.choices import kind_of_placement, planner_name
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.planning.checked_arrays import SLACK, Floats, Ints
from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.partitionings import listable
from dask_elastic.planning.intervals.plan import IntervalPlan
from dask_elastic.planning.intervals.problem import IntervalProblem, SequenceProblem
from dask_elastic.planning.intervals.transition_matrix import transition_matrix
from dask_elastic.planning.intervals.value_iteration import projected_costs
from dask_elastic.planning.matching import best_columns
from dask_elastic.planning.placement.problem import Placement, PlacementProblem
from dask_elastic.planning.registry import planner
from dask_elastic.planning.turns import no_pause

MOST_PARTITIONINGS = 20_000
"""Projected costs are computed on the spot for up to so many partitionings."""


def consecutive_placement(
    placement: str, problem: PlacementProblem, own: int, trace: Sequence[int], settings: PlacementSettings
) -> Placement:
    """Return a placement in which each node has consecutive executors.

    Parameters
    ----------
    placement : str
        ``"ssm"``, ``"oms"`` or ``"mtm"``, or the name of such a planner.
    problem : PlacementProblem
        The executors and nodes.
    own : int
        The first groups, which are the executors of the job; all others stay.
    trace : sequence of int
        The numbers of nodes that stayed in earlier periods, oldest first. From these follow the next number, and how
        likely it is.
    settings : PlacementSettings
        τ and the discount.

    Returns
    -------
    Placement
        The homes. Executors that are not placed consecutively yet are placed so, with most state where it is.
    """
    problem.pause()
    loads = _loads(problem.weight[:own])
    live, current = np.flatnonzero(problem.live), problem.current[:own]
    state = np.where(problem.draining[current], 0.0, problem.state_bytes[:own])
    before = _intervals(current, problem.bins)
    if before is None:
        lengths = balanced_lengths(loads, problem.strength[live])
    else:
        plan = _plan(placement, loads, state, before, len(live), trace, settings, problem.pause)
        lengths = [int(end - start) for start, end in sorted(plan.intervals.tolist()) if end > start]
    bin = problem.current.copy()
    problem.pause()
    bin[:own] = matched(lengths, current, state, live, problem.pause)
    return problem.placement(bin)


def balanced_lengths(load: Floats, strength: Floats) -> list[int]:
    """Return the numbers of consecutive groups for each bin, in proportion to the bins' capacities.

    Parameters
    ----------
    load : array of float
        The load of each group.
    strength : array of float
        The capacity of each bin.

    Returns
    -------
    list of int
        As many as bins; some may be 0.

    Examples
    --------
    >>> balanced_lengths(np.ones(6), np.array([1.0, 2.0]))
    [2, 4]
    """
    middles = (np.cumsum(load) - load / 2) / load.sum()
    ends = np.cumsum(strength) / strength.sum()
    places = np.minimum(np.searchsorted(ends, middles, side="right"), len(strength) - 1)
    return [int(count) for count in np.bincount(places, minlength=len(strength))]


def matched(
    lengths: Sequence[int], current: Ints, state: Floats, live: Ints, pause: Callable[[], None] = no_pause
) -> Ints:
    """Return the bin of each group for consecutive intervals, so that most state, then most groups stay.

    Parameters
    ----------
    lengths : sequence of int
        The groups of each interval; no more intervals than live bins.
    current : array of int
        The bin of each group, −1 for none.
    state : array of float
        The state of each group.
    live : array of int
        The bins that groups may go to.
    pause : callable
        Called about every millisecond of work.

    Returns
    -------
    array of int
        The bin of each group.

    Examples
    --------
    >>> matched([1, 2], np.array([1, 0, 0]), np.ones(3), np.array([0, 1])).tolist()
    [1, 0, 0]
    """
    interval = np.repeat(np.arange(len(lengths)), lengths)
    worth = state / (float(state.sum()) or 1.0) + 1e-6 / max(len(state), 1)
    place = np.searchsorted(live, current)
    near = live[np.minimum(place, len(live) - 1)] == current
    columns, _ = best_columns(interval[near], place[near], worth[near], (len(lengths), len(live)), pause=pause)
    target = live[columns]
    result: Ints = target[interval]
    return result


def _plan(
    placement: str,
    loads: Floats,
    state: Floats,
    before: Ints,
    nodes: int,
    trace: Sequence[int],
    settings: PlacementSettings,
    pause: Callable[[], None],
) -> IntervalPlan:
    matrix = transition_matrix([*trace, nodes])
    kind, name = kind_of_placement(placement), planner_name(placement)
    tau = _tau(loads, nodes, settings, pause)
    if kind == "sequence":
        following = [max(row, key=lambda after: (row[after], -after)) for row in (matrix.get(nodes, {}),) if row]
        counts = [nodes, *following]
        taus = [tau if count == nodes else _tau(loads, count, settings, pause) for count in counts]
        if following and all(
            listable(loads, *step, allow_empty=True, most=MOST_PARTITIONINGS, pause=pause)
            for step in zip(counts, taus, strict=True)
        ):
            known = SequenceProblem(loads, state, before, counts, taus, pause=pause)
            first: IntervalPlan = planner(name).plan(known)[0]
            return first
    problem = IntervalProblem(loads, state, before, nodes, tau, pause=pause)
    if name == "transition-aware" and nodes in matrix:
        counts = sorted({nodes, *matrix, *(after for row in matrix.values() for after in row)})
        if sum(comb(len(loads) - 1, min(count, len(loads)) - 1) for count in counts) <= MOST_PARTITIONINGS:
            wide = max(_tau(loads, count, settings, pause) for count in counts)
            costs = projected_costs(
                loads, state, matrix, wide, settings.discount, allow_empty=True, tolerance=_error(state), pause=pause
            )
            aware: IntervalPlan = planner(name, projected=costs).plan(
                IntervalProblem(loads, state, before, nodes, wide, pause=pause)
            )
            return aware
    # Without a known change of the number of nodes, the next migration is as good as any other. Where there
    # are too many partitionings to look ahead, the next migration is the best that is known.
    single: IntervalPlan = planner("single-step").plan(problem)
    return single


def _error(state: Floats) -> float:
    """Return the tolerated error of projected costs: a millionth of the state."""
    return max(float(state.sum()), 1.0) * 1e-6


def _tau(loads: Floats, nodes: int, settings: PlacementSettings, pause: Callable[[], None]) -> float:
    """Return τ, or the least one that consecutive executors can meet: they are few and heavy."""
    return max(settings.tau, least_tau(loads, nodes, pause) * (1 + SLACK) + SLACK)


def _loads(weight: Floats) -> Floats:
    """Return the loads, or equal ones while there are none."""
    return weight.copy() if weight.any() else np.ones(len(weight))


def _intervals(current: Ints, bins: int) -> Ints | None:
    """Return the interval of each bin; None if the groups of a bin are not consecutive."""
    first = np.flatnonzero(np.append(True, current[1:] != current[:-1]))
    bin = current[first]
    if (bin < 0).any() or len(np.unique(bin)) < len(bin):
        return None
    found = np.zeros((bins, 2), dtype=np.int64)
    found[bin] = np.column_stack([first, np.append(first[1:], len(current))])
    return found
