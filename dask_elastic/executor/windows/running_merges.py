"""Results of overlapping instances from running merges, so that each slice is merged about three times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dask_elastic.state.slots import Column
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.ragged import Ragged

Positions: TypeAlias = npt.NDArray[np.intp]


class Merged(NamedTuple):
    """The state of aggregates by key; keys that are not present have any value."""

    values: list[Column]
    present: npt.NDArray[np.bool_]


class RunningMerges:
    """Merges of the slices of instances that follow each other, all of one length.

    Slices up to a middle are kept as merges of each with all that follow up to the middle; those behind it as one
    merge. An instance is two of these merged. When it has left the middle behind, its slices become the first part.
    So each slice is merged once behind the middle, once before it, and once for a result, whatever the number of slices
    in an instance. They are merged in their order.

    Parameters
    ----------
    bundle : Bundle
        The aggregates.
    read : callable
        Returns the state of a slice, by its number.

    Attributes
    ----------
    merged : int
        The keys of all slices and merges that were merged so far.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dask_elastic.topology.aggregate import Count
    >>> bundle = Bundle({"rows": Count()}, pa.schema({}))
    >>> reads = []
    >>> def read(number):
    ...     reads.append(number)
    ...     return Merged([np.array([10**number])], np.array([True]))
    >>> running = RunningMerges(bundle, read)
    >>> [running.of(begin, begin + 3).values[0].tolist() for begin in range(4)]
    [[111], [1110], [11100], [111000]]
    """

    def __init__(self, bundle: Bundle, read: Callable[[int], Merged]) -> None:
        self._bundle = bundle
        self._read = read
        # Of each slice in the first part, it merged with those behind it; then the middle, and the second part.
        self._before: dict[int, Merged] = {}
        self._middle = 0
        self._behind: Merged | None = None
        self.end = 0
        self.merged = 0

    def of(self, begin: int, end: int) -> Merged:
        """Return the state of an instance, which neither begins nor ends before the last one.

        Parameters
        ----------
        begin, end : int
            The number of its first slice, and of the first one behind it.
        """
        if begin >= self.end or (begin < self._middle and begin not in self._before):
            self._before, self._behind = {}, None
            self._middle = self.end = begin
        while self.end < end:
            part = self._counted(self.end)
            self._behind = part if self._behind is None else self._merge(self._behind, part)
            self.end += 1
        if begin > self._middle:
            self._turn(begin)
        first = self._before.get(begin)
        if first is None:
            assert self._behind is not None
            return self._behind
        for number in [number for number in self._before if number < begin]:
            del self._before[number]
        self.merged += int(np.count_nonzero(first.present))
        return first if self._behind is None else self._merge(first, self._behind)

    def _turn(self, begin: int) -> None:
        """Make the slices of an instance the first part."""
        self._before, self._behind = {}, None
        merged: Merged | None = None
        for number in reversed(range(begin, self.end)):
            part = self._counted(number)
            merged = self._before[number] = part if merged is None else self._merge(part, merged)
        self._middle = self.end

    def _counted(self, number: int) -> Merged:
        part = self._read(number)
        self.merged += int(np.count_nonzero(part.present))
        return part

    def _merge(self, left: Merged, right: Merged) -> Merged:
        return merge(self._bundle, left, right)


def merge(bundle: Bundle, left: Merged, right: Merged) -> Merged:
    """Return the state of keys of which each has state in either part, or in both.

    Parameters
    ----------
    bundle : Bundle
        The aggregates.
    left, right : Merged
        The parts.

    Returns
    -------
    Merged
        The state.
    """
    count = max(len(left.present), len(right.present))
    left, right = _padded(left, count), _padded(right, count)
    both = left.present & right.present
    if both.all():
        return Merged(bundle.merge(left.values, right.values), both)
    places = np.flatnonzero(both)
    alone = np.flatnonzero(left.present & ~right.present)
    merged = bundle.merge(
        [column.take(places) for column in left.values], [column.take(places) for column in right.values]
    )
    values = [
        placed(placed(one, alone, other.take(alone)), places, new)
        for one, other, new in zip(right.values, left.values, merged, strict=True)
    ]
    return Merged(values, left.present | right.present)


def by_key(bundle: Bundle, values: list[Column], inside: Positions, keys: Positions, count: int) -> Merged:
    """Return some state as that of all keys, most of which may have none.

    Parameters
    ----------
    bundle : Bundle
        The aggregates.
    values : list of (ndarray or Ragged)
        The state.
    inside : ndarray of intp
        The positions in it to take.
    keys : ndarray of intp
        The key of each of them.
    count : int
        The number of keys.

    Returns
    -------
    Merged
        The state of all keys.
    """
    present: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
    present[keys] = True
    columns = [column.take(inside) for column in values]
    if len(inside) < count:
        columns = [placed(field.initially(count), keys, new) for field, new in zip(bundle.fields, columns, strict=True)]
    return Merged(columns, present)


def _padded(merged: Merged, count: int) -> Merged:
    """Return the state of more keys; new ones are not present."""
    more = count - len(merged.present)
    if not more:
        return merged
    places = np.append(np.arange(len(merged.present)), np.zeros(more, np.intp))
    return Merged(
        [column.take(places) for column in merged.values], np.append(merged.present, np.zeros(more, np.bool_))
    )


def placed(column: Any, places: Positions, new: Any) -> Any:
    """Return a column with some values replaced.

    Parameters
    ----------
    column : ndarray or Ragged
        The column.
    places : ndarray of intp
        The positions to replace.
    new : ndarray or Ragged
        The values for these.

    Returns
    -------
    ndarray or Ragged
        A copy.

    Examples
    --------
    >>> placed(np.array([1, 2, 3]), np.array([1]), np.array([9])).tolist()
    [1, 9, 3]
    """
    if not len(places):
        return column
    if isinstance(column, Ragged):
        return column.placed(places, new)
    column = column.copy()
    column[places] = new
    return column
