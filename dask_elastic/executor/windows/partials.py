"""Partial aggregates of the slices of several keys, from which the results of instances are merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.state.index import Words
from dask_elastic.state.slots import Column
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.ragged import Ragged, offsets_of

Positions = npt.NDArray[np.intp]

_SPARSE = 8
"""An order is counted, not sorted, with up to so many places for each partial."""


class Partials:
    """Partial aggregates in the order of keys, then slices.

    Parameters
    ----------
    bundle : Bundle
        The aggregates.
    values : sequence of (ndarray or Ragged)
        Their state, one element per partial.
    starts : ndarray of int64
        The begin of each partial's slice.
    hashes, checks : ndarray of uint64
        The identity of each partial's key.
    ordinals : ndarray of intp, optional
        A number for each partial's key, if slices have one length: partials then need not be sorted.
    of_instances : (ndarray of bool, ndarray of int64), optional
        Which partials are of instances in the place of slices, and the end of each partial.
    """

    def __init__(
        self,
        bundle: Bundle,
        values: Sequence[Column],
        starts: npt.NDArray[np.int64],
        hashes: Words,
        checks: Words,
        ordinals: Positions | None = None,
        of_instances: tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]] | None = None,
    ) -> None:
        self._bundle = bundle
        self._values = values
        order = None if ordinals is None else _counted_order(starts, ordinals)
        self._order: Positions = _order(starts, hashes, checks) if order is None else order
        self._starts = starts.take(self._order)
        self._of_instances = None
        if of_instances is not None and of_instances[0].any():
            self._of_instances = of_instances[0].take(self._order), of_instances[1].take(self._order)
        self._opens = np.ones(len(self._order), np.bool_)
        if order is None or ordinals is None:
            ordered, checked = hashes.take(self._order), checks.take(self._order)
            self._opens[1:] = (ordered[1:] != ordered[:-1]) | (checked[1:] != checked[:-1])
        else:
            numbers = ordinals.take(order)
            self._opens[1:] = numbers[1:] != numbers[:-1]
        self._keys = np.cumsum(self._opens) - 1

    def within(self, begin: int, end: int) -> Groups:
        """Return the partials of the slices within an instance, and those of the instance itself, by key.

        Parameters
        ----------
        begin, end : int
            The instance.

        Returns
        -------
        Groups
            The partials of each key that has any.
        """
        inside = (self._starts >= begin) & (self._starts < end)
        if self._of_instances is not None:
            own, ends = self._of_instances
            inside &= ~own | ((self._starts == begin) & (ends == end))
        chosen = np.flatnonzero(inside)
        keys = self._keys.take(chosen)
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        lengths = np.diff(np.append(first, len(keys)))
        return Groups(self._order.take(chosen), lengths)

    def chained(self, lasts: npt.NDArray[np.int64], gap: int) -> Chains:
        """Return the partials of each key in sessions.

        Parameters
        ----------
        lasts : ndarray of int64
            The time of the last row of each partial; its slice begins with its first row.
        gap : int
            The gap.

        Returns
        -------
        Chains
            The sessions, with their bounds.
        """
        ends = lasts.take(self._order) + gap
        opens = self._opens.copy()
        opens[1:] |= self._starts[1:] >= ends[:-1]
        first = np.flatnonzero(opens)
        lengths = np.diff(np.append(first, len(opens)))
        return Chains(Groups(self._order, lengths), self._starts.take(first), ends.take(first + lengths - 1))

    def merged(self, groups: Groups, start: int, stop: int) -> list[Column]:
        """Return the state of groups `start` to `stop`, each merged in the order of its slices."""
        return merged_groups(self._bundle, self._values, groups, start, stop)


def _counted_order(starts: npt.NDArray[np.int64], ordinals: Positions) -> Positions | None:
    """Return the order of keys, by their numbers, then starts; None if it would take more memory than sorting."""
    ranks = _ranks(starts)
    slices = int(ranks.max(initial=0)) + 1
    places = (int(ordinals.max(initial=0)) + 1) * slices
    if places > _SPARSE * len(starts):
        return None
    found = np.full(places, -1, np.intp)
    found[ordinals * slices + ranks] = np.arange(len(starts))
    found = found[found >= 0]
    # A slice may have two partials of a key; see `Places`.
    return found if len(found) == len(starts) else None


def _ranks(starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the starts as multiples of their greatest common step, from 0."""
    ranks: npt.NDArray[np.int64] = starts - starts.min(initial=np.iinfo(np.int64).max)
    ranks //= max(1, int(np.gcd.reduce(ranks)))
    return ranks


def _order(starts: npt.NDArray[np.int64], hashes: Words, checks: Words) -> Positions:
    """Return the order of keys, then starts."""
    ranks = _ranks(starts)
    bits = np.uint64(int(ranks.max(initial=0)).bit_length())
    # Sorting one array of integers takes a fraction of the time of sorting by two: the rank takes the place of the
    # lower bits of the hash.
    kept = (hashes >> bits) << bits
    order = np.argsort(kept | ranks.view(np.uint64))
    upper, ordered, checked = kept.take(order), hashes.take(order), checks.take(order)
    same = upper[1:] == upper[:-1]
    if bits < 32 and np.array_equal(same, same & (ordered[1:] == ordered[:-1]) & (checked[1:] == checked[:-1])):
        return order
    return np.lexsort((starts, checks, hashes))


class Groups(NamedTuple):
    """Partials by key: `lengths` of them for each key, one key after the other."""

    partials: Positions
    lengths: Positions

    @property
    def firsts(self) -> Positions:
        """One partial of each key."""
        found: Positions = self.partials.take(offsets_of(self.lengths)[:-1])
        return found

    def chosen(self, which: npt.NDArray[np.bool_]) -> Groups:
        """Return the partials of some keys."""
        return Groups(self.partials[np.repeat(which, self.lengths)], self.lengths[which])


class Chains(NamedTuple):
    """Sessions: their partials, and the begin and the end of each."""

    groups: Groups
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def merged_groups(bundle: Bundle, values: Sequence[Column], groups: Groups, start: int, stop: int) -> list[Column]:
    """Return the state of groups of partials, each merged in order.

    Parameters
    ----------
    bundle : Bundle
        The aggregates.
    values : sequence of (ndarray or Ragged)
        The state of the partials.
    groups : Groups
        The groups.
    start, stop : int
        Which of them.

    Returns
    -------
    list of (ndarray or Ragged)
        One element for each of these groups.
    """
    bounds = offsets_of(groups.lengths)
    firsts, lengths = bounds[start:stop], groups.lengths[start:stop]
    merged = [column.take(groups.partials.take(firsts)) for column in values]
    for place in range(1, int(lengths.max(initial=0))):
        having = np.flatnonzero(lengths > place)
        every = len(having) == len(lengths)
        left = merged if every else [column.take(having) for column in merged]
        partials = groups.partials.take(firsts.take(having) + place)
        after = bundle.merge(left, [column.take(partials) for column in values])
        merged = after if every else [placed(*one, having) for one in zip(merged, after, strict=True)]
    return merged


def placed(column: Any, new: Any, places: Positions) -> Any:
    """Return a column with other values at some places; an array is changed in place."""
    if isinstance(column, Ragged):
        return column.placed(places, new)
    column[places] = new
    return column
