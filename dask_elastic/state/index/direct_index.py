"""Table beside an index, which finds most hashes of a large batch in one bucket each."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.index.key_index import KeyIndex, Slots, Words

MANY_ROWS = 4_096
"""Smaller batches are looked up in the index itself: fewer calls matter more there than a faster one."""

MOST_KEYS = 1 << 16
"""With more keys the table would not fit into the processor's cache, and no longer be faster."""

_BUCKETS_PER_KEY = 4
_FIRST_DIRECT_BITS = 12


class DirectIndex:
    """A `KeyIndex` that finds most hashes of a large batch in one bucket each, and the others in another index.

    Parameters
    ----------
    index : KeyIndex
        The index, which has all entries.

    Notes
    -----
    The bucket of a hash is given by its upper bits, since the lower ones determine its shard. A bucket has the last
    hash that was looked up in vain there. The table has four to eight buckets per key.

    Examples
    --------
    >>> from dask_elastic.state.index import NumpyIndex
    >>> index = DirectIndex(NumpyIndex())
    >>> index.insert(np.array([7, 2**63 + 9], dtype=np.uint64), np.array([0, 1]))
    >>> index.lookup(np.array([2**63 + 9, 8], dtype=np.uint64)).tolist()
    [1, -1]
    """

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        # Allocated for the first large batch: most tables only see small ones.
        self._shift = np.uint64(0)
        self._slots: Slots = np.empty(0, np.intp)
        self._hashes: Words = np.empty(0, np.uint64)

    def _allocate(self, bits: int) -> None:
        self._shift = np.uint64(64 - bits)
        self._slots = np.zeros(1 << bits, np.intp)
        # An empty bucket has a hash of another one, so that no hash is found in it.
        self._hashes = np.zeros(1 << bits, np.uint64)
        self._hashes[0] = 1 << 63

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none."""
        if len(hashes) < MANY_ROWS or len(self._index) > MOST_KEYS:
            return self._index.lookup(hashes)
        self._fit()
        buckets = (hashes >> self._shift).view(np.int64)
        slots: Slots = self._slots.take(buckets)
        missed = (self._hashes.take(buckets) != hashes).nonzero()[0]
        if len(missed):
            lacking = hashes.take(missed)
            found = self._index.lookup(lacking)
            slots[missed] = found
            known = found >= 0
            if np.count_nonzero(known) < len(known):
                missed, lacking, found = missed[known], lacking[known], found[known]
            buckets = buckets.take(missed)
            self._hashes[buckets] = lacking
            self._slots[buckets] = found
        return slots

    def _fit(self) -> None:
        """Let the table grow with the number of keys; it fills again as keys are looked up."""
        least = max(_BUCKETS_PER_KEY * len(self._index), 1 << _FIRST_DIRECT_BITS)
        if len(self._slots) < least:
            self._allocate((2 * least).bit_length() - 1)

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet."""
        self._index.insert(hashes, slots)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """The approximate memory, in bytes."""
        return int(self._index.nbytes + self._hashes.nbytes + self._slots.nbytes)
