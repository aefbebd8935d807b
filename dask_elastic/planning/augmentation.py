"""Matching of rows with columns at least cost, row by row, so that the caller can pause between rows.

Goal
    The matching that `scipy.sparse.csgraph.min_weight_full_bipartite_matching` finds, also among equal ones, without
    holding Python's lock for as long as that takes.
Heuristic
    None. Each row in turn gets a column by the shortest path that alternates between rows and columns; prices of
    columns keep the costs of edges from being negative.
Not done
    A start by reduced columns, which needs as many columns as rows.

Notes
-----
Jonker and Volgenant, A Shortest Augmenting Path Algorithm for Dense and Sparse Linear Assignment Problems, Computing
38, 1987. None of the papers names an algorithm for its matchings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError

_NONE = -1


def least_cost_columns(
    costs: Sequence[Mapping[int, float]], columns: int, pause: Callable[[], None] = no_pause
) -> list[int]:
    """Return a column of its own for each row, so that the sum of costs is least.

    Parameters
    ----------
    costs : sequence of mapping of int to float
        For each row, what each column costs that it may get.
    columns : int
        The number of columns.
    pause : callable
        Called for each row, and each step of a path: after some microseconds.

    Returns
    -------
    list of int
        The column of each row.

    Raises
    ------
    PlanningError
        If some rows have fewer columns together than they are.

    Examples
    --------
    >>> least_cost_columns([{0: 1.0, 2: 5.0}, {0: 2.0, 1: 4.0, 3: 9.0}], columns=4)
    [0, 1]
    """
    matching = _Matching(costs, columns, pause)
    for row in range(len(costs)):
        pause()
        matching.add(row)
    return matching.column


class _Matching:
    """The best matching of the rows so far."""

    def __init__(self, costs: Sequence[Mapping[int, float]], columns: int, pause: Callable[[], None]):
        self.costs = costs
        self.pause = pause
        self.column = [_NONE] * len(costs)
        self.row = [_NONE] * columns
        self.price = [0.0] * columns

    def add(self, row: int) -> None:
        """Match one more row: others change their columns along the shortest path to a free one."""
        paths = _Paths(self, row)
        end = self.free(paths.nearest)
        if end == _NONE:
            end = paths.reach()
        while True:
            one = paths.origin.get(end, row)
            self.row[end] = one
            self.column[one], end = end, self.column[one]
            if one == row:
                return

    def free(self, columns: Sequence[int]) -> int:
        """Return the first free one of some columns."""
        return next((column for column in columns if self.row[column] == _NONE), _NONE)


class _Paths:
    """The shortest paths from a row without a column.

    Attributes
    ----------
    nearest : list of int
        The columns at the least distance whose rows do not extend paths yet.
    origin : dict of int to int
        The row before each column, unless it is the first one.
    """

    def __init__(self, matching: _Matching, row: int):
        self._matching, self._row = matching, row
        self.nearest: list[int] = []
        self.origin: dict[int, int] = {}
        self._distance: dict[int, float] = {}
        self._least = self._limit = inf
        # Columns by their distances, which are in a heap; those that have become nearer are in other ones as well.
        self._columns: dict[float, list[int]] = {}
        self._queue: list[float] = []
        self._done: set[int] = set()
        price = matching.price
        for column, cost in matching.costs[row].items():
            self._distance[column] = far = cost - price[column]
            if far < self._least:
                self.nearest, self._least = [column], far
            elif far == self._least:
                self.nearest.append(column)

    def reach(self) -> int:
        """Extend paths, the shortest first, until a free column is reached; raise the prices of those passed."""
        self._begin()
        matching = self._matching
        passed: list[int] = []
        before = 0
        while True:
            matching.pause()
            if not self.nearest:
                raise PlanningError(f"row {self._row} has no column of its own: others need all that it may get.")
            passed.append(self.nearest.pop())
            end = self._extend(passed[-1])
            if end == _NONE and not self.nearest:
                before = len(passed)
                self._advance()
                end = matching.free(self.nearest)
            if end != _NONE:
                for column in passed[:before]:
                    matching.price[column] += self._distance[column] - self._least
                return end

    def _begin(self) -> None:
        rows, distance = self._matching.row, self._distance
        self._done.update(self.nearest)
        # No path is followed that is longer than the shortest one to a free column so far.
        self._limit = min((far for column, far in distance.items() if rows[column] == _NONE), default=inf)
        for column, far in distance.items():
            if far <= self._limit and column not in self._done:
                self._columns.setdefault(far, []).append(column)
        self._queue += self._columns
        heapify(self._queue)

    def _extend(self, column: int) -> int:
        """Extend paths by the row of a column; return a free column that is as near as this one, if there is one."""
        matching, distance, origin, done = self._matching, self._distance, self.origin, self._done
        rows, price, least, limit = matching.row, matching.price, self._least, self._limit
        row, columns = rows[column], self._columns
        costs = matching.costs[row]
        saved = costs[column] - price[column] - least
        for other, cost in costs.items():
            far = cost - price[other] - saved
            if far > limit or other in done or far >= distance.get(other, inf):
                continue
            distance[other], origin[other] = far, row
            free = rows[other] == _NONE
            if far != least:
                if (there := columns.get(far)) is None:
                    columns[far] = [other]
                    heappush(self._queue, far)
                else:
                    there.append(other)
                if free:
                    # By rounding, it may be nearer than the nearest ones, which are passed first all the same.
                    self._limit = limit = max(far, least)
            elif free:
                return other
            else:
                self.nearest.append(other)
                done.add(other)
        return _NONE

    def _advance(self) -> None:
        """Go on to the columns that are nearest among the others."""
        distance, done = self._distance, self._done
        while self._queue and not self.nearest:
            self._least = least = heappop(self._queue)
            columns = self._columns.pop(least)
            self.nearest = sorted(one for one in columns if distance[one] == least and one not in done)
        done.update(self.nearest)
