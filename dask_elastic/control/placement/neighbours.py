"""The groups with which each group communicates."""

from __future__ import annotations

import numpy as np

from dask_elastic.planning.placement.problem import Floats, Ints, PlacementProblem


class Neighbours:
    """The groups with which each group communicates, and the bytes per second of each.

    Parameters
    ----------
    problem : PlacementProblem
        The groups and their traffic.
    groups : array of int
        Those whose neighbours are asked for.

    Examples
    --------
    >>> traffic = [[0, 3, 0], [0, 0, 2], [0, 0, 0]]
    >>> neighbours = Neighbours(PlacementProblem([1, 1, 1], [0, 0, 0], 1, traffic=traffic), np.array([2, 1]))
    >>> [part.tolist() for part in neighbours.of(1)]
    [[2, 0], [2.0, 3.0]]
    >>> [part.tolist() for part in neighbours.of_all(np.array([2, 1]))]
    [[0, 1, 1], [1, 2, 0], [2.0, 2.0, 3.0]]
    """

    def __init__(self, problem: PlacementProblem, groups: Ints):
        self._pause = problem.pause
        pairs = problem.traffic.tocoo()
        asked = np.zeros(problem.groups, dtype=np.bool_)
        asked[groups] = True
        apart = pairs.row != pairs.col
        away, back = apart & asked[pairs.row], apart & asked[pairs.col]
        problem.pause()
        ends = np.concatenate((pairs.row[away], pairs.col[back]))
        problem.pause()
        order = np.argsort(ends, kind="stable")
        problem.pause()
        self._others = np.concatenate((pairs.col[away], pairs.row[back]))[order]
        self._rates = np.concatenate((pairs.data[away], pairs.data[back]))[order]
        self._begins = np.searchsorted(ends[order], np.arange(problem.groups + 1))

    def of(self, group: int) -> tuple[Ints, Floats]:
        """Return the neighbours of a group, and the bytes per second of each."""
        part = slice(self._begins[group], self._begins[group + 1])
        return self._others[part], self._rates[part]

    def of_all(self, groups: Ints) -> tuple[Ints, Ints, Floats]:
        """Return the same of several groups: the place of the group among them, the neighbour, and the rate."""
        begins = self._begins[groups]
        counts = self._begins[groups + 1] - begins
        self._pause()
        place = np.repeat(np.arange(len(groups)), counts)
        pairs = np.arange(len(place)) + (begins - (np.cumsum(counts) - counts))[place]
        self._pause()
        return place, self._others[pairs], self._rates[pairs]
