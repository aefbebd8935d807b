"""SSM: the assignment of task intervals that moves least state in one step.

Goal
    The least state moved among all assignments of n′ intervals within the load limit, with free choice of nodes.
Heuristic
    None: a dynamic program over the ends of intervals, exact.
Not done
    The cost of later steps: `dask_elastic.planning.intervals.sequence` and
    `dask_elastic.planning.intervals.transition` look ahead.

Notes
-----
State migration (Ding et al.), section 4.3, with erratum 2: empty intervals are allowed, nodes can be chosen freely, and
new nodes keep nothing. The program differs from that of Figure 7 but has the same result and is O(m² n′) as well: it
goes from left to right, interval by interval, over all positions at once, with two values for each position and number
of intervals; see `dask_elastic.planning.intervals.kept_state`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.intervals.kept_state import ANY, FREE, KeptState
from dask_elastic.planning.intervals.load_limit import check_feasible, checked_nodes, checked_tau, load_limit, reach
from dask_elastic.planning.intervals.plan import IntervalPlan, assign, bounds_of, checked_intervals, checked_tasks


def single_step(
    load: ArrayLike,
    state_bytes: ArrayLike,
    intervals: ArrayLike,
    nodes: int,
    tau: float,
    allow_empty: bool = True,
) -> IntervalPlan:
    """Find the assignment of intervals to nodes that moves least state.

    Parameters
    ----------
    load : array of float
        The load of each task, in any unit.
    state_bytes : array of float
        The size of each task's state.
    intervals : array of int, nodes × 2
        The tasks of each node now, half-open; empty for a node without tasks.
    nodes : int
        The number of nodes after the migration, n′.
    tau : float
        How far a node's load may exceed the mean of n′ nodes, as a share of it, 0 or more.
    allow_empty : bool
        Whether a node may be left without tasks, which can be cheaper.

    Returns
    -------
    IntervalPlan
        With max(n, n′) rows, n that of `intervals`. The row of an unused node is empty.

    Raises
    ------
    PlanningError
        If an argument is out of range, or intervals overlap or leave a gap.
    Infeasible
        If no assignment is within the limit; names the task and the limit.

    Notes
    -----
    State migration, Definition 4.1 and Figure 7, with erratum 2. Among equal answers one with fewer empty intervals
    is preferred.

    Examples
    --------
    >>> plan = single_step([1] * 20, [1] * 20, [[0, 13], [13, 20]], nodes=3, tau=0.4)
    >>> plan.cost
    4.0
    >>> single_step([1, 1, 4], [1, 1, 1], [[0, 3]], nodes=2, tau=0.2)
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.Infeasible: constraint load balancing cannot be met: task 2 alone has a load of 4.0, ...
    """
    loads, state = checked_tasks(load, state_bytes)
    before = checked_intervals(intervals, len(loads))
    count = checked_nodes(nodes)
    check_feasible(loads, count, checked_tau(tau), allow_empty)
    steps = _Steps.of(state, bounds_of(before), reach(loads, load_limit(loads, count, tau)))
    return assign(state, before, _best_bounds(steps, len(loads), count, allow_empty), count)


@dataclass(frozen=True)
class _Steps:
    """Every interval within the limit, grouped by end, and the state that each keeps.

    `start` is the start of each; `ends` are the ends that have intervals, and `first` their first interval.
    """

    start: Ints
    ends: Ints
    first: Ints
    kept: KeptState

    @classmethod
    def of(cls, state: Floats, bounds: Ints, furthest: Ints) -> _Steps:
        positions = np.arange(len(furthest))
        # The longest interval to each end is the first one that reaches it.
        lowest = np.minimum(np.searchsorted(furthest, positions), positions)
        counts = positions - lowest
        first = np.cumsum(counts) - counts
        start = np.arange(int(counts.sum())) + np.repeat(lowest - first, counts)
        kept = KeptState.of(state, bounds[None, :], start, np.repeat(positions, counts))
        return cls(start, positions[counts > 0], first[counts > 0], kept)

    def keeps(self, row: int) -> Floats:
        """Return the state kept, by the state of the start, for one state of the end."""
        return (self.kept.free if row == FREE else self.kept.any)[:, :, 0]


def _best_bounds(steps: _Steps, tasks: int, nodes: int, allow_empty: bool) -> Ints:
    """Return the bounds of the intervals that keep most state; empty ones are left out."""
    kept = np.full((nodes + 1, 2, tasks + 1), -np.inf)
    kept[0, :, 0] = 0.0
    for count in range(1, nodes + 1):
        before = kept[count - 1][:, steps.start]
        for row in (FREE, ANY):
            best = np.maximum.reduceat(before + steps.keeps(row), steps.first, axis=1)
            kept[count, row, steps.ends] = best.max(axis=0)
        if allow_empty:
            np.maximum(kept[count], kept[count - 1], out=kept[count])
    return _traced(steps, kept)


def _traced(steps: _Steps, kept: Floats) -> Ints:
    """Return the bounds that lead to the last value of a table."""
    count, row, end = len(kept) - 1, ANY, kept.shape[2] - 1
    bounds = [end]
    segments = np.append(steps.first, len(steps.start))
    while end > 0:
        segment = int(np.searchsorted(steps.ends, end))
        span = slice(segments[segment], segments[segment + 1])
        options = kept[count - 1][:, steps.start[span]] + steps.keeps(row)[:, span]
        at = int(np.argmax(options))
        # A value that fewer intervals reach too is taken from there.
        if options.flat[at] == kept[count, row, end]:
            row, place = divmod(at, options.shape[1])
            end = int(steps.start[span][place])
            bounds.append(end)
        count -= 1
    return np.array(bounds[::-1], dtype=np.int64)
