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
from math import inf

from dask_elastic.planning.turns import no_pause

_NONE = -1


def least_cost_columns(
    costs: Sequence[Mapping[int, float]], columns: int, pause: Callable[[], None] = no_pause
) -> list[int]:
    """Return a column of its own for each row, so that the sum of costs is least.

    Parameters
    ----------
    costs : sequence of mapping of int to float
        For each row, what each column costs that it may get. Each row has a column that no other may get.
    columns : int
        The number of columns.
    pause : callable
        Called for each row, and each step of a path: after some microseconds.

    Returns
    -------
    list of int
        The column of each row.

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
        self.column = [_NONE] * len(costs)
        self._costs = costs
        self._pause = pause
        self._row = [_NONE] * columns
        self._price = [0.0] * columns

    def add(self, row: int) -> None:
        """Match one more row: others change their columns along the shortest path to a free one."""
        price, distance, nearest, least = self._price, {}, [], inf
        for column, cost in self._costs[row].items():
            distance[column] = far = cost - price[column]
            if far < least:
                nearest, least = [column], far
            elif far == least:
                nearest.append(column)
        origin = dict.fromkeys(distance, row)
        end = self._free(nearest)
        if end == _NONE:
            end = self._reach(distance, origin, nearest, least)
        while True:
            one = origin[end]
            self._row[end] = one
            self.column[one], end = end, self.column[one]
            if one == row:
                return

    def _reach(self, distance: dict[int, float], origin: dict[int, int], nearest: list[int], least: float) -> int:
        """Extend paths, the shortest first, until a free column is reached; raise the prices of those passed."""
        done, passed, before = set(nearest), [], 0
        while True:
            self._pause()
            column = nearest.pop()
            passed.append(column)
            end = self._relaxed(column, distance, origin, nearest, least, done)
            if end == _NONE and not nearest:
                before = len(passed)
                left = [(far, column) for column, far in distance.items() if column not in done]
                least = min(left)[0]
                nearest = sorted(column for far, column in left if far == least)
                done.update(nearest)
                end = self._free(nearest)
            if end != _NONE:
                for column in passed[:before]:
                    self._price[column] += distance[column] - least
                return end

    def _relaxed(
        self,
        column: int,
        distance: dict[int, float],
        origin: dict[int, int],
        nearest: list[int],
        least: float,
        done: set[int],
    ) -> int:
        """Extend paths by the row of a column; return a free column that is as near as this one, if there is one."""
        price, row = self._price, self._row[column]
        costs = self._costs[row]
        saved = costs[column] - price[column] - least
        for other, cost in costs.items():
            if other in done:
                continue
            far = cost - price[other] - saved
            if far < distance.get(other, inf):
                distance[other], origin[other] = far, row
                if far == least:
                    if self._row[other] == _NONE:
                        return other
                    nearest.append(other)
                    done.add(other)
        return _NONE

    def _free(self, columns: Sequence[int]) -> int:
        """Return the first free one of some columns."""
        return next((column for column in columns if self._row[column] == _NONE), _NONE)
