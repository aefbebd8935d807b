"""Ragged columns: one list per key, stored as one array of elements and the offsets of the lists."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Elements = npt.NDArray[Any]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Ragged:
    """A column of lists of any length; immutable by convention.

    Parameters
    ----------
    values : ndarray
        The elements of all lists, concatenated.
    offsets : ndarray of int64
        List i has the elements from `offsets[i]` to `offsets[i + 1]`; one more than there are lists.

    Examples
    --------
    >>> lists = Ragged.grouped(np.array([10, 20, 30]), np.array([1, 0, 1]), 3)
    >>> lists.to_lists(), lists.lengths.tolist()
    ([[20], [10, 30], []], [1, 2, 0])
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Elements, offsets: Positions) -> None:
        self.values = values
        self.offsets = offsets

    @classmethod
    def empty(cls, count: int, dtype: np.dtype[Any]) -> Ragged:
        """Return `count` empty lists."""
        return cls(np.empty(0, dtype), np.zeros(count + 1, np.int64))

    @classmethod
    def of_lengths(cls, values: Elements, lengths: npt.NDArray[Any]) -> Ragged:
        """Return lists of the given lengths, of consecutive elements."""
        return cls(values, offsets_of(lengths))

    @classmethod
    def grouped(cls, values: Elements, ordinals: npt.NDArray[np.intp], count: int) -> Ragged:
        """Return one list per group, with the elements whose ordinal is the group, in order."""
        order = np.argsort(ordinals, kind="stable")
        return cls.of_lengths(values[order], np.bincount(ordinals, minlength=count))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Ragged({len(self)} lists of {len(self.values)} elements of {self.dtype.name})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self.values.dtype

    @property
    def lengths(self) -> Positions:
        """The number of elements of each list."""
        lengths: Positions = self.offsets[1:] - self.offsets[:-1]
        return lengths

    @property
    def owners(self) -> npt.NDArray[np.intp]:
        """The list of each element, by number."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def to_lists(self) -> list[list[Any]]:
        """Return the lists as Python lists."""
        bounds = self.offsets.tolist()
        values = self.values.tolist()
        return [values[start:stop] for start, stop in pairwise(bounds)]

    def take(self, chosen: npt.NDArray[np.intp]) -> Ragged:
        """Return the chosen lists, in the given order."""
        lengths = self.lengths[chosen]
        return Ragged.of_lengths(self.values[spans(self.offsets[chosen], lengths)], lengths)

    def filtered(self, kept: Mask) -> Ragged:
        """Return the lists with only the elements for which `kept` is True."""
        if kept.all():
            return self
        before = np.zeros(len(kept) + 1, np.int64)
        np.cumsum(kept, out=before[1:])
        return Ragged(self.values[kept], before[self.offsets])

    def joined(self, other: Ragged) -> Ragged:
        """Return each list followed by the elements of the other's list of the same number."""
        if not len(other.values):
            return self
        values = np.empty(len(self.values) + len(other.values), self.dtype)
        values[np.arange(len(self.values)) + np.repeat(other.offsets[:-1], self.lengths)] = self.values
        values[np.arange(len(other.values)) + np.repeat(self.offsets[1:], other.lengths)] = other.values
        return Ragged(values, self.offsets + other.offsets)

    def replaced(self, where: Mask, other: Ragged) -> Ragged:
        """Return the other's lists where the mask is True, and these elsewhere."""
        places = np.flatnonzero(where)
        return self.placed(places, other.take(places))

    def placed(self, places: npt.NDArray[np.intp], others: Ragged) -> Ragged:
        """Return the lists with those at `places` replaced by the others, in order."""
        if len(places) == len(self):
            return others.take(np.argsort(places))
        both = Ragged(
            np.concatenate([self.values, others.values]),
            np.concatenate([self.offsets, others.offsets[1:] + self.offsets[-1]]),
        )
        chosen = np.arange(len(self))
        chosen[places] = np.arange(len(self), len(both))
        return both.take(chosen)

    def newest(self, most: int) -> Ragged:
        """Return the last elements of each list, at most `most`."""
        return self.filtered(self.ranks_from_end() < most)

    def ranks_from_end(self) -> Positions:
        """Return for each element how many elements of its list follow it."""
        return np.repeat(self.offsets[1:], self.lengths) - np.arange(len(self.values)) - 1


def offsets_of(lengths: npt.NDArray[Any]) -> Positions:
    """Return the offsets of lists of given lengths.

    Parameters
    ----------
    lengths : ndarray
        The length of each list.

    Returns
    -------
    ndarray of int64
        The start of each list, and the end of the last one.

    Examples
    --------
    >>> offsets_of(np.array([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def spans(starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Positions:
    """Return the concatenated ranges `starts[i]`, …, `starts[i] + lengths[i] - 1`.

    Parameters
    ----------
    starts, lengths : ndarray
        The start and the length of each range.

    Returns
    -------
    ndarray of int64
        The numbers of all ranges.

    Examples
    --------
    >>> spans(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Positions = np.arange(total) + np.repeat(np.asarray(starts) - (ends - lengths), lengths)
    return places


def joined_columns(columns: Sequence[Elements | Ragged]) -> Elements | Ragged:
    """Return the values of several columns of one field, one after the other.

    Parameters
    ----------
    columns : sequence of (ndarray or Ragged)
        At least one.

    Returns
    -------
    ndarray or Ragged
        One column.

    Examples
    --------
    >>> joined_columns([np.array([1, 2]), np.array([3])]).tolist()
    [1, 2, 3]
    >>> joined_columns([Ragged.of_lengths(np.array([1, 2]), np.array([2])), Ragged.empty(1, np.dtype(int))]).to_lists()
    [[1, 2], []]
    """
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if not ragged:
        return np.concatenate([column for column in columns if isinstance(column, np.ndarray)])
    lengths = np.concatenate([column.lengths for column in ragged])
    return Ragged.of_lengths(np.concatenate([column.values for column in ragged]), lengths)
