"""Parts of a graph, made by splitting the heaviest part in two, time and again.

Goal
    The parts for any number of parts, where thousands of splits cost some milliseconds.
Heuristic
    The cut of a part does not depend on the order of splits. So parts that are likely to be split next are cut
    together, and the splits that make k parts are the k - 1 heaviest ones, as halves weigh no more than their part.
Not done
    Splits in other orders than by weight.

Notes
-----
ALBIC, section 2.1 (COLA).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.placement.bisection import Bisection, depths
from dask_elastic.planning.turns import no_pause


class _Ranges(NamedTuple):
    """Parts of several groups: where each begins and ends, and its weight."""

    begin: Ints
    end: Ints
    weight: Floats


class Splits:
    """The splits of all groups into ever smaller parts.

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

    Examples
    --------
    >>> label, size = Splits(None, np.ones(4), seed=0).parts(4)
    >>> sorted(label.tolist()), size.tolist()
    ([0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, traffic: Any, weight: Floats, seed: int, pause: Callable[[], None] = no_pause):
        self._bisection = Bisection(traffic, weight, seed, pause)
        self._pause = pause
        self._weight = weight
        # Each part is a range of this order, also after it has been cut.
        self._order: Ints = np.arange(len(weight))
        # Of each cut: where its second half begins, and the weight of both halves.
        self._middle: Ints = np.zeros(0, dtype=np.int64)
        self._whole: Floats = np.zeros(0)
        several = int(len(weight) > 1)
        self._uncut = _Ranges(np.zeros(several, int), np.full(several, len(weight)), np.full(several, weight.sum()))

    def parts(self, count: int) -> tuple[Ints, Floats]:
        """Return the part of each group, and the weight of each part.

        Parameters
        ----------
        count : int
            The number of parts, at most that of groups.

        Returns
        -------
        label : array of int
            The part of each group.
        size : array of float
            The weight of each part.
        """
        while len(self._uncut.weight) and int((self._whole >= self._uncut.weight.max()).sum()) < count - 1:
            self._cut(count)
        # Of equal cuts the earlier one is first, so no part is split before the one that it is a half of.
        self._pause()
        first = np.argsort(-self._whole, kind="stable")[: max(count - 1, 0)]
        begins = np.sort(np.append(0, self._middle[first]))[:count]
        return self._label(begins), np.add.reduceat(self._weight[self._order], begins)

    def _label(self, begins: Ints) -> Ints:
        """Return the number of the range of each group, by where ranges begin."""
        label = np.zeros(len(self._order), dtype=np.int64)
        label[self._order] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(self._order)))
        return label

    def _cut(self, count: int) -> None:
        """Cut the heaviest parts: those that weigh half as much as the heaviest one, or more."""
        self._pause()
        chosen = self._uncut.weight >= self._uncut.weight.max() / 2
        begin, end, whole = (array[chosen] for array in self._uncut)
        sizes, parts = end - begin, len(begin)
        first = np.cumsum(sizes) - sizes
        at = np.arange(sizes.sum()) + np.repeat(begin - first, sizes)
        members = self._order[at]
        heaviest = np.maximum.reduceat(self._weight[members], first)
        depth = depths(sizes, whole, heaviest, float(self._weight.sum()) / count)
        piece = self._bisection.pieces(members, sizes, depth)
        # The bits of a number are the halves to which a group belongs, those of the first cut in front.
        self._pause()
        most = int(depth.max())
        path = (np.repeat(np.arange(parts), sizes) << most) + (piece << np.repeat(most - depth, sizes))
        order = np.argsort(path, kind="stable")
        self._order[at] = members[order]
        made = self._halves(at, path[order], np.repeat(whole, sizes), most)
        left = (array[~chosen] for array in self._uncut)
        self._uncut = _Ranges(*(np.append(*both) for both in zip(left, made, strict=True)))
        self._bisection.keep(self._label(np.sort(np.append(0, self._middle))))

    def _halves(self, at: Ints, path: Ints, whole: Floats, most: int) -> _Ranges:
        """Note all cuts; return the parts of several groups that they leave.

        Parameters
        ----------
        at : array of int
            The places of the groups that were cut, in their order.
        path : array of int
            The part of each group, followed by `most` bits.
        whole : array of float
            The weight of the part of each group.
        most : int
            The greatest number of cuts of a part.
        """
        weight = self._weight[self._order[at]]
        for bits in range(most, -1, -1):
            self._pause()
            here = path >> bits
            begins = np.flatnonzero(np.diff(here, prepend=-1))
            sizes = np.diff(begins, append=len(path))
            # A sum in another order may be greater by rounding.
            sums = np.minimum(np.add.reduceat(weight, begins), whole[begins])
            whole = np.repeat(sums, sizes)
            if bits:
                middle = 1 + np.flatnonzero((np.diff(path >> (bits - 1)) != 0) & (np.diff(here) == 0))
                self._middle, self._whole = np.append(self._middle, at[middle]), np.append(self._whole, whole[middle])
        several = sizes > 1
        return _Ranges(at[begins][several], (at[begins] + sizes)[several], sums[several])
