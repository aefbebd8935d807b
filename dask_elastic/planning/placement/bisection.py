"""Cuts many parts of a graph in two at once, each with little traffic between its halves.

Goal
    The cuts of COLA, which halves thousands of parts, at a cost of some microseconds for each.
Heuristic
    The edges within all parts are selected, scaled and sorted together. Parts of a few groups are cut best of all cuts
    within the allowed imbalance, of all parts of one size at once; METIS cuts the others.
Not done
    Cuts into more than two, or into halves of different weight: `dask_elastic.planning.placement.graph_partition`.

Notes
-----
ALBIC, sections 2.1 and 5.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_elastic.planning.checked_arrays import Floats, Ints, Mask
from dask_elastic.planning.extras import require
from dask_elastic.planning.placement.graph_partition import UNEVEN, units
from dask_elastic.planning.placement.metis import Graph, cut

FEW = 10
"""Parts of up to so many groups are cut by trying all cuts."""


class Bisection:
    """A graph of which ever smaller parts are cut in two.

    Parameters
    ----------
    traffic : sparse matrix or None
        Bytes per second from group to group.
    weight : array of float
        The weight of each group.
    seed : int
        The partitioner's seed.

    Attributes
    ----------
    cuts : int
        Parts that METIS has cut.

    Examples
    --------
    >>> bisection = Bisection(None, np.ones(5), seed=0)
    >>> [half.tolist() for half in bisection.halves([np.array([0, 3]), np.array([1, 2, 4])])]
    [[True, False], [True, True, False]]
    """

    def __init__(self, traffic: Any, weight: Floats, seed: int):
        self.cuts = 0
        self._weight = weight
        # Whether it is missing does not depend on the size of the problem.
        require("pymetis", "graph partitioning")
        self._seed = seed
        self._row = self._column = np.zeros(0, dtype=np.int64)
        self._rate = np.zeros(0)
        if traffic is not None:
            graph = (traffic + traffic.T).tocsr()
            row = np.repeat(np.arange(len(weight)), np.diff(graph.indptr))
            real = (row != graph.indices) & (graph.data != 0)
            self._row, self._column, self._rate = row[real], graph.indices[real].astype(np.int64), graph.data[real]

    def keep(self, part: Ints) -> None:
        """Forget the edges between parts, given the part of each group."""
        inside = part[self._row] == part[self._column]
        self._row, self._column, self._rate = self._row[inside], self._column[inside], self._rate[inside]

    def halves(self, parts: Sequence[Ints]) -> list[Mask]:
        """Return which groups of each part are in its second half.

        Parameters
        ----------
        parts : sequence of array of int
            The groups of each part, two or more in ascending order; no group is in several parts.
        """
        sizes = np.array([len(part) for part in parts])
        members, part = np.concatenate(parts), np.repeat(np.arange(len(parts)), sizes)
        owner = np.full(len(self._weight), -1, dtype=np.int64)
        place = np.zeros(len(self._weight), dtype=np.int64)
        owner[members], place[members] = part, np.arange(len(members)) - (np.cumsum(sizes) - sizes)[part]
        at = owner[self._row]
        inside = np.flatnonzero((at >= 0) & (at == owner[self._column]))
        inside = inside[np.argsort(at[inside], kind="stable")]
        at, row, column = at[inside], place[self._row[inside]], place[self._column[inside]]
        rate = units(self._rate[inside], at, len(parts))
        weight = units(self._weight[members], part, len(parts))
        begins, edges = np.cumsum(sizes) - sizes, np.searchsorted(at, np.arange(len(parts) + 1))
        found: list[Mask] = [np.zeros(0, dtype=np.bool_)] * len(parts)
        for size in range(2, FEW + 1):
            some = np.flatnonzero(sizes == size)
            if some.size:
                number = np.full(len(parts), -1, dtype=np.int64)
                number[some] = np.arange(len(some))
                own = number[at] >= 0
                table = np.zeros((len(some), size, size))
                table[number[at[own]], row[own], column[own]] = rate[own]
                weights = weight[begins[some][:, None] + np.arange(size)].astype(np.float64)
                for one, half in zip(some.tolist(), _best_halves(table, weights), strict=True):
                    found[one] = half
        for one in np.flatnonzero(sizes > FEW).tolist():
            edge = slice(edges[one], edges[one + 1])
            starts = np.searchsorted(row[edge], np.arange(sizes[one] + 1))
            own_weight = weight[begins[one] : begins[one] + sizes[one]]
            found[one] = self._cut(starts, column[edge], own_weight, rate[edge])
        return found

    def _cut(self, starts: Ints, column: Ints, weight: Ints, rate: Ints) -> Mask:
        """Return the second half by METIS."""
        self.cuts += 1
        half: Mask = cut(Graph(starts, column, weight, rate), 2, self._seed, UNEVEN) == 1
        if half.all() or not half.any():
            # The lightest group makes a half of its own.
            half[np.argmin(weight)] ^= True
        return half


def _best_halves(table: Floats, weight: Floats) -> Mask:
    """Return the best second half of each of several graphs of one size.

    The weight of a half is within the allowed imbalance if that is possible; then least traffic is cut.
    """
    size = weight.shape[1]
    # The last group is in the first half: the other cuts are the same with the halves exchanged.
    cuts = (np.arange(1, 1 << (size - 1))[:, None] >> np.arange(size)) & 1
    side = cuts.astype(np.float64)
    inside = ((side @ table) * side).sum(axis=2)
    lost = table.sum(axis=2) @ side.T - inside
    whole = weight.sum(axis=1)[:, None]
    share = weight @ side.T / whole
    over = np.maximum(np.abs(share - 0.5) - (UNEVEN - 1) / 2, 0.0)
    least = over.min(axis=1, keepdims=True)
    lost = np.where(over <= least + 1e-12, lost, np.inf)
    near = np.where(lost <= lost.min(axis=1, keepdims=True), np.abs(share - 0.5), np.inf)
    halves: Mask = cuts[np.argmin(near, axis=1)] == 1
    return halves
