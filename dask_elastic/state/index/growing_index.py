"""Index that is a table of pandas while it is small, and grows without one long step."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.index.key_index import KeyIndex, Slots, Words
from dask_elastic.state.index.numpy_index import NumpyIndex
from dask_elastic.state.index.pandas_index import PandasIndex

MOST_IN_PANDAS = 1 << 18
"""Keys up to which the table is of pandas: then it doubles within some 10 ms, and large batches are found no faster."""

_MOVED_PER_KEY = 8
_LEAST_MOVED = 512
_FIRST_ENTRIES = 1_024


class GrowingIndex:
    """A `KeyIndex` for processes that have pandas.

    Notes
    -----
    The table of pandas finds small batches two to three times as fast as `NumpyIndex`, but is copied as a whole when it
    is full, which takes 180 ms with four million keys. So with more keys they move to a `NumpyIndex`, some with each
    insertion. Meanwhile a hash that it does not have is looked up in the table of pandas.

    Examples
    --------
    >>> index = GrowingIndex()
    >>> index.insert(np.array([7, 2**63 + 9], dtype=np.uint64), np.array([0, 1]))
    >>> index.lookup(np.array([2**63 + 9, 8], dtype=np.uint64)).tolist()
    [1, -1]
    """

    def __init__(self) -> None:
        self._count = 0
        self._small: PandasIndex | None = PandasIndex()
        self._large: NumpyIndex | None = None
        # All that the table of pandas has, which does not tell it, and how many of these have moved.
        self._hashes: Words = np.empty(_FIRST_ENTRIES, np.uint64)
        self._slots: Slots = np.empty(_FIRST_ENTRIES, np.intp)
        self._noted = 0
        self._moved = 0

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none."""
        first: KeyIndex | None = self._small if self._large is None else self._large
        assert first is not None, "there is always a table"
        slots = first.lookup(hashes)
        if self._large is not None and self._small is not None:
            missing = (slots < 0).nonzero()[0]
            slots[missing] = self._small.lookup(hashes[missing])
        return slots

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet."""
        self._count += len(hashes)
        if self._large is None:
            if self._small is not None and self._count <= MOST_IN_PANDAS:
                self._small.insert(hashes, slots)
                self._note(hashes, slots)
                return
            self._large = NumpyIndex()
        self._large.insert(hashes, slots)
        if self._small is not None:
            self._move(self._large, max(_LEAST_MOVED, _MOVED_PER_KEY * len(hashes)))

    def _note(self, hashes: Words, slots: Slots) -> None:
        before, self._noted = self._noted, self._noted + len(hashes)
        if self._noted > len(self._hashes):
            more = np.empty(max(self._noted - before, before), np.uint64)
            self._hashes = np.concatenate([self._hashes[:before], more])
            self._slots = np.concatenate([self._slots[:before], more.view(np.intp)])
        self._hashes[before : self._noted] = hashes
        self._slots[before : self._noted] = slots

    def _move(self, large: NumpyIndex, count: int) -> None:
        part = slice(self._moved, min(self._moved + count, self._noted))
        large.insert(self._hashes[part], self._slots[part])
        self._moved = part.stop
        if self._moved == self._noted:
            self._small = None
            self._hashes, self._slots = np.empty(0, np.uint64), np.empty(0, np.intp)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The approximate memory, in bytes."""
        tables = [table.nbytes for table in (self._small, self._large) if table is not None]
        return sum(tables) + self._hashes.nbytes + self._slots.nbytes
