"""Sets of groups whose loads are hardly correlated, by repeated splits.

Goal
    The sets of Algorithm 2, for thousands of groups within a decision of the control loop.
Heuristic
    Splits of different sets do not depend on each other: all sets that may be next are split together, and a heap has
    the order. Groups whose loads are all near one direction are related, each to each: their products are summed
    without a comparison of pairs.
Not done
    Capacities: sets are made for equal bins.

Notes
-----
ELB/CLB, section 4 (Algorithm 2); errata are named in `dask_elastic.planning.placement.correlation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, nsmallest

import numpy as np

from dask_elastic.planning.checked_arrays import Floats, Ints, Mask
from dask_elastic.planning.turns import in_turns, no_pause

_BLOCK = 256
"""Groups that are compared with all others of their set at a time."""


def split(
    series: Floats, sets: int, threshold: float, exact: bool = False, pause: Callable[[], None] = no_pause
) -> Ints:
    """Split groups into sets so that correlated groups are separated.

    Parameters
    ----------
    series : array of float, windows × groups
        The load of each group in each window.
    sets : int
        The number of sets; fewer if there are fewer groups.
    threshold : float
        The correlation from which a group leaves the set of the chosen group.
    exact : bool
        Use products in place of covariances; then the most related leave, up to half of the load of their set.
    pause : callable
        Called about every millisecond of work.

    Returns
    -------
    array of int
        The set of each group.

    Notes
    -----
    ELB/CLB, Algorithm 2. Among equal contributions the group in the heavier set is chosen, then the lighter group, then
    the first.

    Examples
    --------
    >>> import numpy as np
    >>> split(np.array([[1.0, 2, 9], [3, 6, 2], [1, 2, 8]]), sets=2, threshold=0.5).tolist()
    [0, 1, 0]
    """
    label = np.zeros(series.shape[1], dtype=np.int64)
    if not len(label):
        return label
    count = min(sets, len(label))
    pause()
    relations = Relations(series if exact else series - series.mean(axis=0), series, threshold, pause)
    splitter = Splitter(relations, exact)
    for made in in_turns(range(1, count), pause):
        label[splitter.next(count - made)] = made
    return label


class Splitter:
    """Splits one set after the other, in the order of their most related groups.

    Parameters
    ----------
    relations : Relations
        The groups.
    exact : bool
        As for `split`.

    Attributes
    ----------
    rounds : int
        How often sets were split together.
    """

    def __init__(self, relations: Relations, exact: bool):
        self.rounds = 0
        self._relations, self._exact, self._pause = relations, exact, relations.pause
        # By number: the members of each set in ascending order, its most related group, and the sets it was split into.
        self._members: list[Ints] = []
        self._chosen: list[int] = []
        self._parts: dict[int, tuple[int, int]] = {}
        self._queue: list[tuple[float, float, float, int, int]] = []
        everything = np.arange(len(relations.size))
        for entry in self._entries(everything, np.zeros(1, dtype=np.int64)):
            heappush(self._queue, entry)
        self._waiting = {entry[-1]: entry for entry in self._queue}

    def next(self, most: int) -> Ints:
        """Split the next set.

        Parameters
        ----------
        most : int
            The number of splits that may follow, with this one: no more sets are split beforehand.

        Returns
        -------
        array of int
            The groups that leave.
        """
        number = self._queue[0][-1]
        if number not in self._parts:
            near = self._queue if len(self._queue) <= most else nsmallest(most, self._queue)
            self._split([entry[-1] for entry in near if entry[-1] not in self._parts])
        heappop(self._queue)
        stays, leaves = self._parts.pop(number)
        for part in (stays, leaves):
            if part in self._waiting:
                heappush(self._queue, self._waiting.pop(part))
        return self._members[leaves]

    def _split(self, numbers: list[int]) -> None:
        """Split some sets together."""
        self.rounds += 1
        relations, size = self._relations, self._relations.size
        self._pause()
        members = np.concatenate([self._members[number] for number in numbers])
        lengths = np.array([len(self._members[number]) for number in numbers])
        part = np.repeat(np.arange(len(numbers)), lengths)
        chosen = np.array([self._chosen[number] for number in numbers])
        begins = np.cumsum(lengths) - lengths
        self._pause()
        similarity, leaving = relations.to_one(members, chosen[part])
        alone = ~np.logical_or.reduceat(leaving, begins)
        if self._exact:
            leaving = self._nearest(members, part, similarity, leaving, begins)
        if alone.any():
            # No group is related to the chosen one: the largest other one leaves.
            order = np.lexsort((-size[members], members == chosen[part], part))
            leaving[order[begins[alone]]] = True
        self._pause()
        order = np.lexsort((leaving, part))
        left = np.add.reduceat(leaving.astype(np.int64), begins)
        starts = np.stack([begins, begins + lengths - left], axis=1).ravel()
        first = len(self._members)
        for entry in self._entries(members[order], starts):
            self._waiting[entry[-1]] = entry
        self._parts |= {number: (first + 2 * at, first + 2 * at + 1) for at, number in enumerate(numbers)}

    def _nearest(self, members: Ints, part: Ints, similarity: Floats, leaving: Mask, begins: Ints) -> Mask:
        """Return what leaves each set: most similar first, then heaviest; one at least, up to half of the load."""
        size = self._relations.size[members]
        order = np.lexsort((-size, -np.round(similarity, 9), ~leaving, part))
        sums = np.where(leaving, size, 0.0)[order]
        self._pause()
        sums = np.concatenate([np.cumsum(one) for one in in_turns(np.split(sums, begins[1:]), self._pause)])
        fits = sums <= np.add.reduceat(size, begins)[part] / 2
        fits[begins] = True
        some = np.zeros_like(leaving)
        some[order] = fits & leaving[order]
        return some

    def _entries(self, members: Ints, starts: Ints) -> Iterator[tuple[float, float, float, int, int]]:
        """Add sets; yield the entry in the queue of each that has several groups."""
        size = self._relations.size
        self._pause()
        parts = np.split(members, starts[1:])
        self._pause()
        lengths = np.array([len(part) for part in parts])
        part = np.repeat(np.arange(len(parts)), lengths)
        contribution = self._relations.contributions(members, parts, starts)
        load = np.add.reduceat(size[members], starts)
        most = np.maximum.reduceat(contribution, starts)
        # Two groups that are related only to each other contribute the same up to rounding.
        share = np.round(contribution / np.where(most > 0, most, 1.0)[part], 9)
        self._pause()
        best = members[np.lexsort((members, size[members], -share, part))[starts]]
        self._pause()
        first = len(self._members)
        self._members += parts
        self._chosen += best.tolist()
        several = np.flatnonzero(lengths > 1)
        entries = zip(
            several.tolist(), most[several].tolist(), load[several].tolist(), best[several].tolist(), strict=True
        )
        for at, value, weight, group in in_turns(entries, self._pause):
            yield -float(f"{value:.9e}"), -weight, float(size[group]), group, first + at


class Relations:
    """Which groups are related, and by how much.

    Parameters
    ----------
    centred : array of float, windows × groups
        The loads, or their distances from the mean.
    series : array of float, windows × groups
        The loads.
    threshold : float
        The correlation from which groups are related.
    pause : callable
        Called about every millisecond of work.

    Attributes
    ----------
    size : array of float
        The sum of the loads of each group.
    compared : int
        Pairs of groups that were compared so far, to sum their products.
    """

    def __init__(self, centred: Floats, series: Floats, threshold: float, pause: Callable[[], None] = no_pause):
        self.pause = pause
        self.size: Floats = series.sum(axis=0)
        self.compared = 0
        self._threshold = threshold
        vectors = np.ascontiguousarray(centred.T) / math.sqrt(len(series))
        self._scale = np.sqrt((vectors**2).sum(axis=1))
        # A group of constant load is correlated with no other, even at a threshold of 0.
        self._varies = self._scale > 1e-12 * float(series.max(initial=0))
        self._scale[~self._varies] = 0.0
        self._vectors = np.where(self._varies[:, None], vectors, 0.0)
        self._units = self._vectors / np.where(self._varies, self._scale, 1.0)[:, None]
        self._near = self._all_related()

    def to_one(self, members: Ints, chosen: Ints) -> tuple[Floats, Mask]:
        """Return the similarity of each group to another one, and whether the two are related."""
        similarity: Floats = np.einsum("gw,gw->g", self._units[members], self._units[chosen])
        both = self._varies[members] & self._varies[chosen]
        related: Mask = both & (similarity >= self._threshold) & (members != chosen)
        return similarity, related

    def contributions(self, members: Ints, parts: Sequence[Ints], starts: Ints) -> Floats:
        """Return for each group the sum of its products with those of its part that are related to it.

        Parameters
        ----------
        members : array of int
            The groups of all parts.
        parts : sequence of array of int
            The groups of each part.
        starts : array of int
            Where each part begins.
        """
        near = self._near[members]
        vectors = np.where(near[:, None], self._vectors[members], 0.0)
        self.pause()
        sums = np.repeat(np.add.reduceat(vectors, starts), [len(part) for part in parts], axis=0)
        found: Floats = np.einsum("gw,gw->g", vectors, sums - vectors)
        self.pause()
        for at in np.flatnonzero(~np.logical_and.reduceat(near, starts)).tolist():
            self.pause()
            if len(parts[at]) > 1:
                self._compare(parts[at], found[starts[at] : starts[at] + len(parts[at])])
        return found

    def _compare(self, part: Ints, found: Floats) -> None:
        """Add the products of the groups of a part that are not near with all of it."""
        units, scale = self._units[part], self._scale[part]
        near = self._near[part]
        apart = np.flatnonzero(~near)
        self.compared += len(apart) * len(part)
        for start in range(0, len(apart), _BLOCK):
            some = apart[start : start + _BLOCK]
            self.pause()
            similarity = units[some] @ units.T
            similarity[np.arange(len(some)), some] = 0.0
            self.pause()
            similarity *= similarity >= self._threshold
            self.pause()
            found[some] += scale[some] * (similarity @ scale)
            self.pause()
            found[near] += scale[near] * (scale[some] @ similarity[:, near])

    def _all_related(self) -> Mask:
        """Return groups of which any two are related: those within half of the angle around the mean direction."""
        mean = self._units.sum(axis=0)
        length = float(np.sqrt((mean**2).sum()))
        if length == 0:
            none: Mask = ~self._varies
            return none
        widest = math.cos(math.acos(self._threshold) / 2)
        result: Mask = ~self._varies | (self._units @ (mean / length) >= widest + 1e-9)
        return result
