"""All partitionings of tasks into intervals within a load limit, and the costs between many of them at once.

Goal
    The kernel of planning over several migrations: every partitioning, and the cost from one to another.
Heuristic
    None. Partitionings are the leaves of a tree in which equal prefixes are one branch, so most work is shared.
Not done
    The nodes of intervals: later migrations depend on the partitioning only.

Notes
-----
State migration (Ding et al.), section 5: Lemmas 5.1 and 5.2. By erratum 2 intervals may be empty: a partitioning with
empty ones is one of fewer intervals here. The best matching is found interval by interval, with the two values of
`dask_elastic.planning.intervals.kept_state`, for all branches of a level at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dask_elastic.planning.checked_arrays import Floats, Ints, Mask
from dask_elastic.planning.intervals.kept_state import ANY, FREE, KeptState
from dask_elastic.planning.intervals.load_limit import fewest_intervals, load_limit, reach
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError

MOST = 2_500_000
"""The most partitionings that are listed."""

_CELLS = 400_000
_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class Partitionings:
    """Partitionings of tasks into the same number of intervals, none of them empty.

    Parameters
    ----------
    bounds : array of int, partitionings × (intervals + 1)
        The starts of the intervals of each and the end of the last one; rows in lexicographic order.

    Raises
    ------
    PlanningError
        If bounds do not ascend from 0 to the same number of tasks, or rows are not in order.

    Examples
    --------
    >>> found = Partitionings(np.array([[0, 1, 3], [0, 2, 3]]))
    >>> found.lengths.tolist()
    [[1, 2], [2, 1]]
    """

    bounds: Ints

    def __post_init__(self) -> None:
        bounds = self.bounds
        if bounds.ndim != 2 or bounds.shape[1] < 2 or bounds.dtype.kind not in "iu":
            raise PlanningError(f"bounds has shape {bounds.shape} and type {bounds.dtype}: give integers, row by row.")
        wrong = (bounds[:, 0] != 0) | (bounds[:, -1] != bounds[:1, -1]) | (np.diff(bounds, axis=1) <= 0).any(axis=1)
        for row in np.flatnonzero(wrong)[:1].tolist():
            raise PlanningError(f"bounds {bounds[row].tolist()} do not ascend from 0 to the number of tasks.")
        step = np.diff(bounds, axis=0)
        first = np.take_along_axis(step, (step != 0).argmax(axis=1)[:, None], axis=1)[:, 0]
        for row in np.flatnonzero(first <= 0)[:1].tolist():
            raise PlanningError(f"bounds {bounds[row + 1].tolist()} are not after {bounds[row].tolist()}: sort them.")

    def __len__(self) -> int:
        return len(self.bounds)

    @property
    def count(self) -> int:
        """The number of intervals of each partitioning."""
        return int(self.bounds.shape[1]) - 1

    @property
    def lengths(self) -> Ints:
        """The tasks of each interval, partitionings × intervals."""
        result: Ints = np.diff(self.bounds, axis=1)
        return result

    @cached_property
    def tree(self) -> tuple[tuple[Ints, Ints], ...]:
        """For each level the parent of each branch, and its interval among the distinct ones."""
        new = np.ones(len(self.bounds), dtype=np.bool_)
        new[1:] = False
        branch = np.zeros(len(self.bounds), dtype=np.int64)
        levels = []
        for level in range(self.count):
            new[1:] |= self.bounds[1:, level + 1] != self.bounds[:-1, level + 1]
            grown = np.flatnonzero(new)
            levels.append((branch[grown], self.interval[grown, level]))
            branch = np.cumsum(new) - 1
        return tuple(levels)

    @cached_property
    def _keys(self) -> tuple[Ints, Ints]:
        width = int(self.bounds[0, -1]) + 1
        keys = self.bounds[:, :-1] * width + self.bounds[:, 1:]
        occurs = np.zeros(width * width, dtype=np.int64)
        occurs[keys] = 1
        return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[keys]

    @property
    def interval(self) -> Ints:
        """The number of each interval among the distinct ones, partitionings × intervals."""
        return self._keys[1]

    @property
    def distinct(self) -> tuple[Ints, Ints]:
        """The first tasks and the ends of all intervals that occur."""
        first, end = np.divmod(self._keys[0], int(self.bounds[0, -1]) + 1)
        return first, end

    @cached_property
    def neighbours(self) -> tuple[tuple[Ints, Ints, Ints], ...]:
        """For each bound and direction: partitionings, those with that bound one task away, and that task."""
        found = []
        mixed = _mixed(self.bounds)
        order = np.argsort(mixed, kind="stable")
        for bound in range(1, self.count):
            for step in (-1, 1):
                shifted = self.bounds.copy()
                shifted[:, bound] += step
                at = np.searchsorted(mixed[order], _mixed(shifted))
                other = order[np.minimum(at, len(order) - 1)]
                same = np.flatnonzero((self.bounds[other] == shifted).all(axis=1))
                if same.size:
                    task = self.bounds[same, bound] - (step < 0)
                    found.append((same, other[same], task))
        return tuple(found)

    def costs(self, state: Floats, sources: Ints, pause: Callable[[], None] = no_pause) -> Floats:
        """Return the cost of migrating to each partitioning from others.

        Parameters
        ----------
        state : array of float
            The state of each task.
        sources : array of int, sources × (intervals + 1)
            Bounds of the source partitionings, all of the same number of intervals.
        pause : callable
            Called between levels.

        Returns
        -------
        array of float, partitionings × sources
            The least state that moves.

        Examples
        --------
        >>> found = Partitionings(np.array([[0, 1, 3], [0, 2, 3]]))
        >>> found.costs(np.array([1.0, 2.0, 4.0]), np.array([[0, 1, 3], [0, 2, 3]])).tolist()
        [[0.0, 2.0], [2.0, 0.0]]
        """
        pause()
        kept = KeptState.of(state, sources, *self.distinct)
        free = best = np.zeros((1, len(sources)))
        for level, (parent, interval) in enumerate(self.tree, start=1):
            pause()
            before, at_best = free[parent], best[parent]
            if level < self.count:
                free = np.maximum(before + kept.free[FREE][interval], at_best + kept.free[ANY][interval])
            best = np.maximum(before + kept.any[FREE][interval], at_best + kept.any[ANY][interval])
        result: Floats = np.maximum(np.cumsum(state)[-1] - best, 0.0)
        return result

    @property
    def block(self) -> int:
        """The number of sources for which a table of costs stays small."""
        return max(_CELLS // max(len(self), 1), 1)


def rounding(state: Floats) -> float:
    """Return the rounding error of sums of state over all tasks."""
    return float(len(state) * np.finfo(np.float64).eps * state.sum())


def dominated(found: Partitionings, state: Floats, costs: Floats, slack: float) -> Mask:
    """Return which partitionings are dominated: another one on the way to them is at least as good.

    Parameters
    ----------
    found : Partitionings
        The partitionings.
    state : array of float
        The state of each task.
    costs : array of float, partitionings or partitionings × sources
        The cost of each so far.
    slack : float
        The rounding error of costs.

    Returns
    -------
    array of bool
        As `costs`.

    Notes
    -----
    The future cost from one partitioning exceeds that from another by at most the cost of migrating between them. So a
    partitioning that differs by one task and is cheaper by at least that task's state is at least as good in the end.
    """
    worse = np.zeros(costs.shape, dtype=np.bool_)
    for here, there, task in found.neighbours:
        weight = state[task].reshape(-1, *(1,) * (costs.ndim - 1))
        worse[here] |= (costs[there] + weight <= costs[here] + slack) & (weight > 2 * slack)
    return worse


def partitionings(
    load: Floats, nodes: int, tau: float, allow_empty: bool, pause: Callable[[], None] = no_pause
) -> list[Partitionings]:
    """List the partitionings within the load limit.

    Parameters
    ----------
    load : array of float
        The load of each task.
    nodes : int
        The number of nodes.
    tau : float
        How far a node may exceed the mean, as a share of it.
    allow_empty : bool
        Whether nodes may be left without tasks.
    pause : callable
        Called about every millisecond of work.

    Returns
    -------
    list of Partitionings
        One for each number of non-empty intervals, the greatest first, so that it wins ties.

    Raises
    ------
    PlanningError
        If there are more than can be listed.

    Notes
    -----
    State migration, section 5.1, line 2 of Figure 8.

    Examples
    --------
    >>> [found.lengths.tolist() for found in partitionings(np.ones(4), nodes=3, tau=0.5, allow_empty=True)]
    [[[1, 1, 2], [1, 2, 1], [2, 1, 1]], [[2, 2]]]
    """
    ends = reach(load, load_limit(load, nodes, tau))
    fewest = fewest_intervals(ends)
    counts = range(min(nodes, len(load)), int(fewest[0]) - 1 if allow_empty else nodes - 1, -1)
    many = _at_least(ends, counts, pause)
    if many > MOST:
        raise PlanningError(
            f"{len(load)} tasks have {many:.3g} partitionings for {nodes} nodes with tau {tau!r}: at most "
            f"{MOST:,} can be listed. Give a smaller tau, or fewer tasks or nodes."
        )
    return [_listed(ends, fewest, count, pause) for count in counts]


def listable(
    load: Floats,
    nodes: int,
    tau: float,
    allow_empty: bool,
    most: int = MOST,
    pause: Callable[[], None] = no_pause,
) -> bool:
    """Return whether `partitionings` can list the partitionings of a problem that has some.

    Parameters
    ----------
    load, nodes, tau, allow_empty
        As for `partitionings`.
    most : int
        The most that may be listed.
    pause : callable
        Called about every millisecond of work.

    Examples
    --------
    >>> listable(np.ones(4), 3, 0.5, True), listable(np.ones(400), 30, 0.5, True)
    (True, False)
    """
    ends = reach(load, load_limit(load, nodes, tau))
    least = int(fewest_intervals(ends)[0]) if allow_empty else nodes
    return _at_least(ends, range(min(nodes, len(load)), least - 1, -1), pause) <= most


def _at_least(ends: Ints, counts: range, pause: Callable[[], None]) -> float:
    """Return the number of partitionings into these numbers of intervals, or a part of it above `MOST`."""
    many = 0.0
    for count in counts:
        many += _number(ends, count, pause)
        if many > MOST:
            break
    return many


def _number(ends: Ints, count: int, pause: Callable[[], None]) -> float:
    """Return the number of partitionings into `count` intervals; infinite where it is too large for a float."""
    tasks = len(ends) - 1
    ways = np.append(np.zeros(tasks), 1.0)
    for _ in range(count):
        pause()
        sums = np.append(np.cumsum(ways), 0.0)
        if not math.isfinite(sums[-2]):
            return math.inf
        ways = np.append(sums[ends[:-1]] - sums[np.arange(tasks)], 0.0)
    return float(ways[0])


def _listed(ends: Ints, fewest: Ints, count: int, pause: Callable[[], None]) -> Partitionings:
    """Return the partitionings into `count` intervals, extending each prefix by all intervals that can follow."""
    tasks = len(ends) - 1
    rows = np.zeros((1, 1), dtype=np.int64)
    for left in range(count - 1, -1, -1):
        pause()
        last = rows[:, -1]
        # Fewer tasks never need more intervals, so the ends that can follow are a range.
        lowest = np.maximum(last + 1, int(np.argmax(fewest <= left)))
        highest = np.minimum(ends[last], tasks - left)
        options = np.maximum(highest - lowest + 1, 0)
        row = np.repeat(np.arange(len(rows)), options)
        offset = np.arange(len(row)) - np.repeat(np.cumsum(options) - options, options)
        rows = np.column_stack([rows[row], (lowest[row] + offset)])
    return Partitionings(rows)


def _mixed(bounds: Ints) -> NDArray[np.uint64]:
    """Return a hash of each row."""
    mixed = np.zeros(len(bounds), dtype=np.uint64)
    for column in bounds.T[1:-1]:
        mixed = (mixed + column.astype(np.uint64) + np.uint64(1)) * np.uint64(_MIX)
    return mixed
