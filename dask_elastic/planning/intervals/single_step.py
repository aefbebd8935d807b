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

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.intervals.kept_state import ANY, FREE, KeptState
from dask_elastic.planning.intervals.load_limit import (
    check_feasible,
    checked_nodes,
    checked_tau,
    fewest_intervals,
    load_limit,
    reach,
)
from dask_elastic.planning.intervals.plan import IntervalPlan, assign, bounds_of, checked_intervals, checked_tasks
from dask_elastic.planning.turns import no_pause


def single_step(
    load: ArrayLike,
    state_bytes: ArrayLike,
    intervals: ArrayLike,
    nodes: int,
    tau: float,
    allow_empty: bool = True,
    pause: Callable[[], None] = no_pause,
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
    pause : callable
        Called about every millisecond of work.

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
    pause()
    check_feasible(loads, count, checked_tau(tau), allow_empty)
    furthest = reach(loads, load_limit(loads, count, tau))
    pause()
    steps = _Steps.of(state, bounds_of(before), furthest)
    return assign(state, before, _best_bounds(steps, furthest, count, allow_empty, pause), count, pause)


@dataclass(frozen=True)
class _Steps:
    """Every interval within the limit, grouped by end, and the state that each keeps.

    `start` is the start of each; `ends` are the ends that have intervals, and `first` their first interval. `keeps` is
    the state kept, by the states of the end and of the start.
    """

    start: Ints
    ends: Ints
    first: Ints
    keeps: Floats

    @classmethod
    def of(cls, state: Floats, bounds: Ints, furthest: Ints) -> _Steps:
        positions = np.arange(len(furthest))
        # The longest interval to each end is the first one that reaches it.
        lowest = np.minimum(np.searchsorted(furthest, positions), positions)
        counts = positions - lowest
        first = np.cumsum(counts) - counts
        start = np.arange(int(counts.sum())) + np.repeat(lowest - first, counts)
        kept = KeptState.of(state, bounds[None, :], start, np.repeat(positions, counts))
        assert (FREE, ANY) == (0, 1), "the order of the table"
        return cls(start, positions[counts > 0], first[counts > 0], np.stack([kept.free[:, :, 0], kept.any[:, :, 0]]))


def _best_bounds(steps: _Steps, furthest: Ints, nodes: int, allow_empty: bool, pause: Callable[[], None]) -> Ints:
    """Return the bounds of the intervals that keep most state; empty ones are left out."""
    pause()
    table = _Table(steps, furthest, nodes)
    for count in range(1, nodes + 1):
        pause()
        table.fill(count, allow_empty)
    return _traced(steps, table, pause)


class _Table:
    """The most state kept, by the number of intervals so far, the state of their end, and the end.

    Of each number of intervals it has the ends that so many can reach, and from which those that are left reach the
    last task. All others are no part of an answer.
    """

    def __init__(self, steps: _Steps, furthest: Ints, nodes: int):
        self.steps, self.tasks, self.nodes = steps, len(furthest) - 1, nodes
        fewest = fewest_intervals(furthest)
        self.low = self.tasks + 1 - np.searchsorted(fewest[::-1], np.arange(nodes, -1, -1), side="right")
        high, reached = np.zeros(nodes + 1, dtype=np.int64), furthest.tolist()
        for count in range(1, nodes + 1):
            high[count] = reached[high[count - 1]]
        # The last column is never filled: it stands for all starts before the first.
        width = int((high - np.append(0, self.low[:-1])).max()) + 2
        self.kept = np.full((nodes + 1, 2, width), -np.inf)
        self.kept[0, :, 0] = 0.0
        self._begins = np.searchsorted(steps.ends, self.low)
        self._ends = np.searchsorted(steps.ends, high, side="right")
        self._segments = np.append(steps.first, len(steps.start))

    def fill(self, count: int, allow_empty: bool) -> None:
        """Fill in the ends of one more interval."""
        low, earlier, shift = int(self.low[count]), self.kept[count - 1], int(self.low[count] - self.low[count - 1])
        begin, end = self._begins[count], self._ends[count]
        if begin < end:
            pairs = slice(self._segments[begin], self._segments[end])
            before = self._at(count - 1, self.steps.start[pairs])
            found = before + self.steps.keeps[:, :, pairs]
            best = np.maximum.reduceat(found, self.steps.first[begin:end] - pairs.start, axis=2).max(axis=1)
            self.kept[count][:, self.steps.ends[begin:end] - low] = best
        if allow_empty:
            now = self.kept[count][:, : earlier.shape[1] - shift]
            np.maximum(now, earlier[:, shift:], out=now)

    def options(self, count: int, starts: Ints) -> Floats:
        """Return the state kept before an interval, for each state and each start of it."""
        return self._at(count - 1, starts)

    def value(self, count: int, row: int, end: int) -> float:
        """Return one value."""
        return float(self.kept[count, row, end - self.low[count]])

    def _at(self, count: int, starts: Ints) -> Floats:
        found: Floats = self.kept[count].take(np.maximum(starts - self.low[count], -1), axis=1, mode="wrap")
        return found


def _traced(steps: _Steps, table: _Table, pause: Callable[[], None]) -> Ints:
    """Return the bounds that lead to the last value of a table."""
    count, row, end = table.nodes, ANY, table.tasks
    bounds = [end]
    spans = dict(zip(steps.ends.tolist(), itertools.pairwise([*steps.first.tolist(), len(steps.start)]), strict=True))
    while end > 0:
        pause()
        span = slice(*spans[end])
        options = table.options(count, steps.start[span]) + steps.keeps[row, :, span]
        at = int(options.argmax())
        # A value that fewer intervals reach too is taken from there.
        if options.item(at) == table.value(count, row, end):
            row, place = divmod(at, options.shape[1])
            end = int(steps.start[span.start + place])
            bounds.append(end)
        count -= 1
    return np.array(bounds[::-1], dtype=np.int64)
