"""Buckets of a hash table: each has a 64-bit hash and a slot number, or is empty."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.index.key_index import Slots, Words
from dask_elastic.state.reserved_array import HUGE_FROM, reserved_array

_SPREAD = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1
_BUCKET = np.dtype([("hash", np.uint64), ("number", np.int64)])
"""The number is the slot plus 1, and 0 in an empty bucket."""

ONE_BY_ONE = 24
"""Up to so many hashes are looked up one by one, which is faster than the calls of NumPy for all of them."""

_PAGE = 1 << 12


class Buckets:
    """A hash table of fixed size in NumPy: open addressing with linear probing.

    Parameters
    ----------
    bits : int
        The table has 2**bits buckets. At least half of them must stay empty.

    Notes
    -----
    A hash's first bucket is given by the upper bits of its product with 2**64 divided by the golden ratio, which
    spreads consecutive hashes evenly. Hash and slot of a bucket are side by side, so that a lookup in a large table
    waits for memory once. Large batches are looked up with few calls of NumPy; a few rows, and the last few that
    collide with other hashes, are faster one by one.

    Examples
    --------
    >>> buckets = Buckets(10)
    >>> buckets.place(np.array([7, 2**63 + 9], dtype=np.uint64), np.array([1, 2]))
    >>> buckets.lookup(np.array([2**63 + 9, 8], dtype=np.uint64)).tolist()
    [1, -1]
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        reserved = reserved_array(_BUCKET, 1 << bits, huge_pages=True) if self._is_large else None
        self._table = np.zeros(1 << bits, _BUCKET) if reserved is None else reserved
        self._touched = 0
        # Views of the same buckets; the numbers are of Python.
        self._hashes, self._numbers = self._table["hash"], self._table["number"]
        self._words = self._table.view(np.uint64).data

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """The memory, in bytes."""
        return int(self._table.nbytes)

    @property
    def _is_large(self) -> bool:
        return _BUCKET.itemsize << self.bits >= HUGE_FROM

    def touch(self, count: int) -> None:
        """Have the system allocate the memory of more buckets, so that placing hashes there does not wait for it.

        Parameters
        ----------
        count : int
            The number of buckets.
        """
        first, self._touched = self._touched, min(self._touched + count * _BUCKET.itemsize, self.nbytes)
        self._table.view(np.uint8)[first : self._touched : _PAGE] = 0

    def _first_bucket(self, hashes: Words) -> Slots:
        return ((hashes * np.uint64(_SPREAD)) >> np.uint64(64 - self.bits)).view(np.intp)

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none.

        Parameters
        ----------
        hashes : ndarray of uint64
            Hashes, in any order.

        Returns
        -------
        ndarray of intp
            One slot per hash.
        """
        buckets = self._first_bucket(hashes)
        found = self._table.take(buckets)
        slots: Slots = found["number"] - 1
        pending = ((found["hash"] != hashes) & (slots >= 0)).nonzero()[0]
        buckets = buckets[pending]
        while len(pending) > ONE_BY_ONE:
            buckets = (buckets + 1) & (len(self._table) - 1)
            found = self._table.take(buckets)
            next_slots = found["number"] - 1
            slots[pending] = next_slots
            other = ((found["hash"] != hashes[pending]) & (next_slots >= 0)).nonzero()[0]
            pending, buckets = pending[other], buckets[other]
        if len(pending):
            slots[pending] = self.find(hashes[pending].tolist())
        return slots

    def find(self, hashes: list[int]) -> list[int]:
        """Return the slot of each of a few hashes, or -1 if it has none."""
        words, shift, last = self._words, 64 - self.bits, 2 * len(self._table) - 2
        slots = []
        for hash in hashes:
            word = (hash * _SPREAD & _WORD) >> shift << 1
            while (number := words[word + 1]) and words[word] != hash:
                word = word + 2 & last
            slots.append(number - 1)
        return slots

    def place(self, hashes: Words, numbers: Slots) -> None:
        """Add distinct hashes that the table does not have.

        Parameters
        ----------
        hashes : ndarray of uint64
            The hashes.
        numbers : ndarray of intp
            Their slots plus 1.
        """
        buckets = self._first_bucket(hashes)
        while len(hashes):
            free = np.flatnonzero(self._numbers[buckets] == 0)
            # If several hashes want one free bucket, the last write wins it and the others probe on.
            self._numbers[buckets[free]] = numbers[free]
            won = free[self._numbers[buckets[free]] == numbers[free]]
            self._hashes[buckets[won]] = hashes[won]
            lost = np.ones(len(hashes), dtype=np.bool_)
            lost[won] = False
            hashes, numbers, buckets = hashes[lost], numbers[lost], (buckets[lost] + 1) & (len(self._table) - 1)

    def entries(self, first: int, count: int) -> tuple[Words, Slots]:
        """Return the hashes and the numbers of a range of buckets, without the empty ones."""
        part = self._table[first : first + count]
        used = part[part["number"] > 0]
        return used["hash"], used["number"]
