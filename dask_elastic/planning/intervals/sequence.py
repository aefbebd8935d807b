"""OMS: the assignments of a sequence of migrations with the least total cost.

Goal
    The least total cost of a sequence whose node counts, loads, sizes and limits are known beforehand.
Heuristic
    None. Forward, step by step, the least cost to reach each partitioning. Partitionings that are dominated, or that
    cost more than the best single steps in total, are dropped.
Not done
    Steps with more partitionings than can be listed: they grow exponentially with the number of nodes.

Notes
-----
State migration (Ding et al.), section 5.1, Figure 8. The figure's recursion evaluates each continuation anew; by Lemma
5.1 the rest depends on the partitioning only, so each is evaluated once here. By erratum 1, Table 3 does not
follow from its own definitions: the optimum of its example is 6, and single steps cost 6 or 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.intervals.load_limit import check_feasible, checked_nodes, checked_tau
from dask_elastic.planning.intervals.partitionings import Partitionings, dominated, partitionings, rounding
from dask_elastic.planning.intervals.plan import (
    IntervalPlan,
    assign,
    bounds_of,
    checked_intervals,
    checked_tasks,
)
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_array, as_floats


def sequence(
    load: ArrayLike,
    state_bytes: ArrayLike,
    intervals: ArrayLike,
    nodes_sequence: Sequence[int],
    tau: float | Sequence[float],
    allow_empty: bool = True,
    pause: Callable[[], None] = no_pause,
) -> list[IntervalPlan]:
    """Find the assignments of a sequence of migrations that move least state in total.

    Parameters
    ----------
    load : array of float, tasks or steps × tasks
        The load of each task, the same for all steps or per step.
    state_bytes : array of float, tasks or steps × tasks
        The size of each task's state, the same for all steps or per step.
    intervals : array of int, nodes × 2
        The tasks of each node before the first step, half-open; empty for a node without tasks.
    nodes_sequence : sequence of int
        The number of nodes after each step.
    tau : float or sequence of float
        How far a node's load may exceed the mean, as a share of it, for all steps or per step.
    allow_empty : bool
        Whether a node may be left without tasks.
    pause : callable
        Called about every millisecond of work.

    Returns
    -------
    list of IntervalPlan
        One plan per step, from the assignment before it. The number of rows never falls.

    Raises
    ------
    PlanningError
        If an argument is out of range, intervals overlap or leave a gap, or there are too many partitionings to list.
    Infeasible
        If no assignment is within the limit of a step; names the step, the task and the limit.

    Notes
    -----
    State migration, Figure 8 and Lemma 5.1; see also erratum 1.

    Examples
    --------
    >>> plans = sequence([1] * 20, [1] * 20, [[0, 13], [13, 20]], [3, 4], tau=0.4)
    >>> [plan.cost for plan in plans]
    [4.0, 2.0]
    """
    steps = _steps(load, state_bytes, nodes_sequence, tau)
    if not steps:
        return []
    before = checked_intervals(intervals, len(steps[0].load))
    for number, step in enumerate(steps):
        check_feasible(step.load, step.nodes, step.tau, allow_empty, f"step {number}: ")
    most = _cost_of_single_steps(steps, before, allow_empty, pause)
    slack = len(steps) * max(rounding(step.state) for step in steps)
    stages = [_Stage([bounds_of(before)[None, :]], [np.zeros(1)])]
    for step, later in zip(steps, [*steps[1:], steps[-1]], strict=True):
        found = partitionings(step.load, step.nodes, step.tau, allow_empty, pause)
        stages.append(stages[-1].followed_by(found, step.state, later.state, most, slack, pause))
    return _plans(stages, steps, before)


@dataclass(frozen=True, eq=False)
class _Step:
    """One migration: loads and sizes at that time, the number of nodes, and τ."""

    load: Floats
    state: Floats
    nodes: int
    tau: float


@dataclass(frozen=True, eq=False)
class _Stage:
    """Partitionings that are not dropped, by their number of intervals, and the least cost to reach each."""

    bounds: list[Ints]
    costs: list[Floats]

    def followed_by(
        self,
        found: list[Partitionings],
        state: Floats,
        later: Floats,
        most: float,
        slack: float,
        pause: Callable[[], None],
    ) -> _Stage:
        """Return the next stage: the given partitionings without those that are dropped."""
        bounds, costs = [], []
        for part in found:
            least = self._least(part, state, most + slack, pause)
            pause()
            near = np.flatnonzero(least <= most + slack)
            if near.size:
                within = Partitionings(part.bounds[near])
                keep = np.flatnonzero(~dominated(within, later, least[near], slack))
                bounds.append(within.bounds[keep])
                costs.append(least[near][keep])
        return _Stage(bounds, costs)

    def _least(self, part: Partitionings, state: Floats, most: float, pause: Callable[[], None]) -> Floats:
        """Return the least cost to reach each partitioning, exact up to a bound."""
        least = np.full(len(part), np.inf)
        size = part.block
        for bounds, costs in zip(self.bounds, self.costs, strict=True):
            order = np.argsort(costs, kind="stable")
            for start in range(0, len(order), size):
                block = order[start : start + size]
                if costs[block[0]] > most or costs[block[0]] >= least.max():
                    break
                totals = part.costs(state, bounds[block], pause) + costs[block]
                np.minimum(least, totals.min(axis=1), out=least)
        return least

    def before(self, bounds: Ints, state: Floats) -> Ints:
        """Return the partitioning of this stage from which another is reached at least cost."""
        target = Partitionings(bounds[None, :])
        best, found = np.inf, bounds
        for group, costs in zip(self.bounds, self.costs, strict=True):
            totals = target.costs(state, group)[0] + costs
            at = int(np.argmin(totals))
            if totals[at] < best:
                best, found = float(totals[at]), group[at]
        return found

    @property
    def best(self) -> Ints:
        """The partitioning of least cost."""
        group = int(np.argmin([costs.min() for costs in self.costs]))
        result: Ints = self.bounds[group][int(np.argmin(self.costs[group]))]
        return result


def _plans(stages: list[_Stage], steps: list[_Step], before: Ints) -> list[IntervalPlan]:
    chosen = [stages[-1].best]
    for stage, step in zip(stages[-2:0:-1], steps[:0:-1], strict=True):
        chosen.append(stage.before(chosen[-1], step.state))
    plans = []
    for step, bounds in zip(steps, reversed(chosen), strict=True):
        plans.append(assign(step.state, before, bounds, step.nodes))
        before = plans[-1].intervals
    return plans


def _cost_of_single_steps(steps: list[_Step], before: Ints, allow_empty: bool, pause: Callable[[], None]) -> float:
    total = 0.0
    for step in steps:
        plan = single_step(step.load, step.state, before, step.nodes, step.tau, allow_empty, pause)
        total, before = total + plan.cost, plan.intervals
    return total


def _steps(
    load: ArrayLike, state_bytes: ArrayLike, nodes_sequence: Sequence[int], tau: float | Sequence[float]
) -> list[_Step]:
    if as_array("nodes_sequence", nodes_sequence).ndim != 1:
        raise PlanningError(f"nodes_sequence is {nodes_sequence!r}: give a number of nodes for each step.")
    nodes = [checked_nodes(count) for count in nodes_sequence]
    loads = _each_step("load", load, len(nodes))
    states = _each_step("state_bytes", state_bytes, len(nodes))
    taus = as_floats("tau", tau)
    if taus.shape not in ((), (len(nodes),)):
        raise PlanningError(f"tau has shape {taus.shape}: give one number, or one for each of {len(nodes)} steps.")
    steps = []
    for step, count in enumerate(nodes):
        one_load, one_state = checked_tasks(loads[step], states[step])
        steps.append(_Step(one_load, one_state, count, checked_tau(float(np.broadcast_to(taus, len(nodes))[step]))))
    return steps


def _each_step(name: str, given: ArrayLike, steps: int) -> Floats:
    values = as_floats(name, given)
    if values.ndim == 2 and len(values) != steps:
        raise PlanningError(f"{name} is for {len(values)} steps: nodes_sequence has {steps}.")
    if values.ndim not in (1, 2):
        raise PlanningError(f"{name} has shape {values.shape}: give tasks, or steps × tasks.")
    result: Floats = np.broadcast_to(values, (steps, values.shape[-1]))
    return result
