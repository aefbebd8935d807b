"""Slices of the rows of keys by their numbers, and the instances of a count window that rows complete."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dask_elastic.state.slot_search import Mask
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.ragged import offsets_of, spans
from dask_elastic.topology.windowing import CountWindow

Numbers: TypeAlias = npt.NDArray[np.int64]
Positions: TypeAlias = npt.NDArray[np.intp]


class SliceLength(NamedTuple):
    """How the rows of a key are divided: slices of `rows` rows, `kept` of which an instance consists."""

    rows: int
    kept: int

    @classmethod
    def of(cls, window: CountWindow) -> SliceLength:
        """Return the longest slices of which all instances of a window consist.

        Examples
        --------
        >>> SliceLength.of(CountWindow(length=100, frequency=30))
        SliceLength(rows=10, kept=10)
        """
        rows = math.gcd(window.length, window.frequency)
        return cls(rows, window.length // rows)


class RowSlices:
    """The slices that the rows of one batch are in, and the instances that they complete.

    A key keeps its newest slices in a ring of places: slice s is at place s mod `kept`.

    Parameters
    ----------
    window : CountWindow
        The window.
    before : ndarray of int64
        The number of earlier rows of each key.
    grouping : Grouping
        The rows by key.

    Attributes
    ----------
    after : ndarray of int64
        The number of rows of each key, with these.
    first, last : ndarray of int64
        The slices of each key's first and last new row.
    least : ndarray of int64
        The earliest slice of each key that is read or written.
    needed : ndarray of int64
        The earliest slice of each key that a later instance contains.
    instance_keys, instances : ndarray
        The key of each completed instance, and its number: it begins with row number x frequency.

    Examples
    --------
    >>> slices = RowSlices(CountWindow(2, 2), np.array([1]), Grouping(np.zeros(4, np.intp), 1))
    >>> slices.numbers.tolist(), slices.instances.tolist(), slices.after.tolist()
    ([0, 1, 2], [0, 1], [5])
    """

    def __init__(self, window: CountWindow, before: Numbers, grouping: Grouping) -> None:
        self.window = window
        self.length = SliceLength.of(window)
        rows = self.length.rows
        self.before = before
        self.after = before + grouping.sizes
        self.first, self.last = before // rows, (self.after - 1) // rows
        complete, already = self._complete(self.after), self._complete(before)
        made = complete - already
        self.instance_keys: Positions = np.repeat(np.arange(len(before)), made)
        self.instances = spans(already, made)
        self._per_hop = window.frequency // rows
        self.needed = complete * self._per_hop
        self.least = np.where(made > 0, np.minimum(already * self._per_hop, self.first), self.first)
        self._offsets = offsets_of(self.last - self.first + 1)
        self._row_numbers(grouping)

    def _complete(self, rows: Numbers) -> Numbers:
        """Return how many instances are complete with a number of rows."""
        return np.maximum((rows - self.window.length) // self.window.frequency + 1, 0)

    def _row_numbers(self, grouping: Grouping) -> None:
        order = grouping.order
        numbers = np.empty(len(order), np.int64)
        numbers[order] = spans(self.before, grouping.sizes)
        keys = grouping.ordinals
        of_row = self._offsets.take(keys) + numbers // self.length.rows - self.first.take(keys)
        self.grouping = Grouping(of_row, int(self._offsets[-1]))
        self.row_numbers = numbers

    @property
    def numbers(self) -> Numbers:
        """The slices with new rows, by key."""
        return spans(self.first, self.last - self.first + 1)

    @property
    def keys(self) -> Positions:
        """The key of each slice with new rows."""
        return np.repeat(np.arange(len(self.first)), self.last - self.first + 1)

    @property
    def continued(self) -> Positions:
        """The keys whose first slice with new rows has earlier rows as well."""
        return np.flatnonzero(self.before % self.length.rows)

    def of_first(self, keys: Positions) -> Positions:
        """Return the position of the first slice with new rows of some keys."""
        found: Positions = self._offsets.take(keys)
        return found

    def contained(self) -> tuple[int, int]:
        """Return the number of pairs of a new row and an instance that contains it, and of rows in no instance."""
        if self.window.frequency == self.window.length:
            return len(self.row_numbers), 0
        last = self.row_numbers // self.window.frequency
        each = np.maximum(last - self._complete(self.row_numbers) + 1, 0)
        return int(each.sum()), int(np.count_nonzero(each == 0))

    def places(self) -> Ring:
        """Return the places of the slices that are read or written."""
        kept = self.length.kept
        widths = np.minimum(self.last - self.least + 1, kept)
        keys = np.repeat(np.arange(len(widths)), widths)
        slices = spans(self.least, widths)
        # A place may have been used several times by the rows of one batch.
        newest = slices + (self.last.take(keys) - slices) // kept * kept
        bounds = offsets_of(widths)
        lacking = np.flatnonzero(-self.least % kept >= widths)
        zeros = bounds[:-1] + -self.least % kept
        zeros[lacking] = bounds[-1] + np.arange(len(lacking))
        return Ring(
            np.concatenate([keys, lacking]),
            np.concatenate([slices % kept, np.zeros(len(lacking), np.int64)]),
            np.concatenate([newest, np.full(len(lacking), -1)]),
            bounds[:-1],
            zeros,
        )

    def place_of(self, ring: Ring, keys: Positions, slices: Numbers) -> Positions:
        """Return the positions of slices of keys among the places."""
        found: Positions = ring.offsets.take(keys) + (slices - self.least.take(keys)) % self.length.kept
        return found

    def chains(self, ring: Ring, stored: int) -> tuple[Positions, Positions]:
        """Return the slices that completed instances consist of, and where each instance begins among them.

        Parameters
        ----------
        ring : Ring
            The places.
        stored : int
            The number of the first slice with new rows in a table that has the places before.

        Returns
        -------
        slices, starts : ndarray of intp
            Positions in that table, by key and slice; and in this array.
        """
        chosen = np.zeros(len(self.first), np.bool_)
        chosen[self.instance_keys] = True
        lengths = np.where(chosen, self.last - self.least + 1, 0)
        keys = np.repeat(np.arange(len(lengths)), lengths)
        slices = spans(self.least, lengths)
        is_new = slices >= self.first.take(keys)
        of_new = stored + self._offsets.take(keys) + slices - self.first.take(keys)
        found = np.where(is_new, of_new, self.place_of(ring, keys, slices))
        owners = self.instance_keys
        starts = offsets_of(lengths).take(owners) + self.instances * self._per_hop - self.least.take(owners)
        return found, starts


class Ring(NamedTuple):
    """The places of the slices of keys that are read or written; place 0 of each key is among them.

    Parameters
    ----------
    keys : ndarray of intp
        The key of each.
    places : ndarray of int64
        Its number within the ring of the key.
    newest : ndarray of int64
        The slice that it has after the rows; -1 if it stays as it is.
    offsets : ndarray of intp
        The position of each key's earliest slice.
    zeros : ndarray of intp
        The position of each key's place 0.
    """

    keys: Positions
    places: Numbers
    newest: Numbers
    offsets: Positions
    zeros: Positions

    def obsolete(self, slices: RowSlices) -> Mask:
        """Return which places have a slice that no later instance contains."""
        found: Mask = (self.newest >= 0) & (self.newest < slices.needed.take(self.keys))
        return found
