"""Cuts many parts of a graph at once, each in two, or in two several times, with little traffic between the pieces.

Goal
    The cuts of COLA, which halves thousands of parts, at a cost of some microseconds for each.
Heuristic
    The edges within all parts are selected, scaled and sorted together. Parts of a few groups are cut best of all cuts
    within the allowed imbalance, of all parts of one size at once. METIS cuts the others: large ones in one call in as
    many pieces as repeated cuts would make, while no piece can be empty.
Not done
    Halves of different weight: `dask_elastic.planning.placement.graph_partition`.

Notes
-----
ALBIC, sections 2.1 and 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dask_elastic.planning.checked_arrays import Floats, Ints, Mask
from dask_elastic.planning.extras import require
from dask_elastic.planning.placement.graph_partition import UNEVEN, units
from dask_elastic.planning.placement.metis import THOROUGH, Graph, cut
from dask_elastic.planning.turns import no_pause

FEW = 10
"""Parts of up to so many groups are cut by trying all cuts."""

MANY = 2_000
"""METIS cuts parts of so many groups or more into pieces of half of `FEW` groups or more at once, others in two."""

_EVEN = 1.2
"""How much larger than its share a piece may be after each of several cuts: with larger pieces, more are cut singly."""

_HASTY = 1
"""How often METIS improves each of several cuts: thorough ones leave 0.1 to 0.5 % less traffic between pieces, in half
as much time again."""

_LIGHTEST = 2.25
"""Halves weigh about their part's weight divided by this or more, where no group is as heavy as that."""


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
    pause : callable
        Called about every millisecond of work.

    Attributes
    ----------
    cuts : int
        Calls of METIS.

    Examples
    --------
    >>> bisection = Bisection(None, np.ones(5), seed=0)
    >>> bisection.pieces(np.array([0, 3, 1, 2, 4]), np.array([2, 3]), np.array([1, 1])).tolist()
    [1, 0, 1, 1, 0]
    """

    def __init__(self, traffic: Any, weight: Floats, seed: int, pause: Callable[[], None] = no_pause):
        # Whether it is missing does not depend on the size of the problem.
        require("pymetis", "graph partitioning")
        self.cuts = 0
        self._weight = weight
        self._seed = seed
        self._pause = pause
        self._row = self._column = np.zeros(0, dtype=np.int64)
        self._rate = np.zeros(0)
        if traffic is not None:
            pause()
            graph = (traffic + traffic.T).tocsr()
            pause()
            row = np.repeat(np.arange(len(weight)), np.diff(graph.indptr))
            real = (row != graph.indices) & (graph.data != 0)
            self._row, self._column, self._rate = row[real], graph.indices[real].astype(np.int64), graph.data[real]

    def keep(self, part: Ints) -> None:
        """Forget the edges between parts, given the part of each group."""
        self._pause()
        inside = part[self._row] == part[self._column]
        self._row, self._column, self._rate = self._row[inside], self._column[inside], self._rate[inside]

    def pieces(self, members: Ints, sizes: Ints, levels: Ints) -> Ints:
        """Return the piece of each group in its part: 0 or 1 of parts cut once, 0 to 3 of those cut twice, and so on.

        Parameters
        ----------
        members : array of int
            The groups of the first part, then those of the next one, each in ascending order.
        sizes : array of int
            The number of groups of each part, 2 or more.
        levels : array of int
            How often each part is cut in two; parts of up to `FEW` groups once.

        Returns
        -------
        array of int
            The piece of each of these groups; no part has all its groups in one piece.
        """
        parts, begins = len(sizes), np.cumsum(sizes) - sizes
        part = np.repeat(np.arange(parts), sizes)
        owner = np.full(len(self._weight), -1, dtype=np.int64)
        place = np.zeros(len(self._weight), dtype=np.int64)
        owner[members], place[members] = part, np.arange(len(members)) - begins[part]
        self._pause()
        at = owner[self._row]
        inside = np.flatnonzero((at >= 0) & (at == owner[self._column]))
        inside = inside[np.argsort(at[inside], kind="stable")]
        self._pause()
        at, row, column = at[inside], place[self._row[inside]], place[self._column[inside]]
        self._pause()
        rate, weight = units(self._rate[inside], at, parts), units(self._weight[members], part, parts)
        self._pause()
        piece = np.zeros(len(members), dtype=np.int64)
        few = np.flatnonzero(sizes[at] <= FEW)
        for size in np.unique(sizes[sizes <= FEW]).tolist():
            self._pause()
            some = np.flatnonzero(sizes == size)
            number = np.full(parts, -1, dtype=np.int64)
            number[some] = np.arange(len(some))
            own = few[number[at[few]] >= 0]
            table = np.zeros((len(some), size, size))
            table[number[at[own]], row[own], column[own]] = rate[own]
            groups = begins[some][:, None] + np.arange(size)
            self._pause()
            piece[groups] = _best_halves(table, weight[groups].astype(np.float64))
        edges = np.searchsorted(at, np.arange(parts + 1))
        for one in np.flatnonzero(sizes > FEW).tolist():
            self._pause()
            edge, group = slice(edges[one], edges[one + 1]), slice(begins[one], begins[one] + sizes[one])
            starts = np.searchsorted(row[edge], np.arange(sizes[one] + 1))
            piece[group] = self._cut(Graph(starts, column[edge], weight[group], rate[edge]), 1 << int(levels[one]))
        return piece

    def _cut(self, graph: Graph, pieces: int) -> Ints:
        """Return the pieces by METIS."""
        self.cuts += 1
        uneven, refinements = (UNEVEN, THOROUGH) if pieces == 2 else (_EVEN, _HASTY)
        piece = cut(graph, pieces, self._seed, uneven, refinements=refinements)
        if (piece == piece[0]).all():
            # The lightest group makes a piece of its own.
            piece[np.argmin(graph.weights)] ^= 1
        return piece


def depths(sizes: Ints, whole: Floats, heaviest: Floats, least: float) -> Ints:
    """Return how often each part is cut in two in one call of METIS, 1 or more.

    The pieces have at least half of `FEW` groups and weigh at least `least` on average. Where a group weighs as much as
    a piece does, another piece may be empty; METIS must not cut that one, as it prints a warning.

    Parameters
    ----------
    sizes : array of int
        The number of groups of each part.
    whole, heaviest : array of float
        The weight of each part and of its heaviest group.
    least : float
        The weight of a part that is not cut again.

    Returns
    -------
    array of int
        The number of cuts, each of which doubles the number of pieces.

    Examples
    --------
    >>> whole, heaviest = np.full(3, 3_000.0), np.array([1.0, 100.0, 1.0])
    >>> depths(np.array([3_000, 3_000, 500]), whole, heaviest, least=1.0).tolist()
    [9, 4, 1]
    >>> depths(np.array([3_000, 3_000, 500]), whole, heaviest, least=700.0).tolist()
    [2, 2, 1]
    """
    none = np.finfo(np.float64).tiny
    by_groups = np.where(sizes >= MANY, np.log2(2 * sizes / FEW), 1)
    by_weight = np.log2(np.maximum(whole, none) / max(least, none))
    by_heaviest = np.log(np.maximum(whole, none) / np.maximum(heaviest, none)) / math.log(_LIGHTEST)
    cuts = np.minimum(np.minimum(by_groups, by_weight), by_heaviest)
    result: Ints = np.maximum(np.floor(cuts), 1).astype(np.int64)
    return result


def _best_halves(table: Floats, weight: Floats) -> Mask:
    """Return the best second half of each of several graphs of one size.

    The weight of a half is within the allowed imbalance if that is possible; then least traffic is cut.
    """
    size = weight.shape[1]
    side, crossing, pairs = _all_cuts(size)
    # Products of this size take longer in BLAS, which wakes its threads for them.
    lost = np.einsum("gp,cp->gc", table.reshape(len(table), -1)[:, pairs], crossing)
    share = np.einsum("gv,cv->gc", weight, side) / weight.sum(axis=1)[:, None]
    uneven = np.abs(share - 0.5)
    over = np.maximum(uneven - (UNEVEN - 1) / 2, 0.0)
    lost[over > over.min(axis=1, keepdims=True) + 1e-12] = np.inf
    uneven[lost > lost.min(axis=1, keepdims=True)] = np.inf
    halves: Mask = side[np.argmin(uneven, axis=1)] == 1
    return halves


@cache
def _all_cuts(size: int) -> tuple[Floats, Floats, Ints]:
    """Return all cuts of some groups as ones: the groups of the second half, and the pairs that are cut.

    The last group is in the first half: the other cuts are the same with the halves exchanged. Pairs are those of
    different groups, given third by their places in a table of groups × groups that is read row by row.
    """
    side = (np.arange(1, 1 << (size - 1))[:, None] >> np.arange(size)) & 1
    one, other = np.triu_indices(size, 1)
    return side.astype(np.float64), (side[:, one] != side[:, other]).astype(np.float64), one * size + other
