"""Index from 64-bit hashes to slots: hash tables that look up whole batches."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.intp]

_FIRST_BITS = 10
_SPREAD = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1
_BUCKET = np.dtype([("hash", np.uint64), ("number", np.int64)])
"""A bucket of `NumpyIndex`: the number is the slot plus 1, and 0 in an empty bucket."""

_ONE_BY_ONE = 24
"""Up to so many hashes are looked up one by one, which is faster than the calls of NumPy for all of them."""

_BYTES_PER_BUCKET = 17

MANY_ROWS = 4_096
"""Smaller batches are looked up in the index itself: fewer calls matter more there than a faster one."""

MOST_KEYS = 1 << 16
"""With more keys the table would not fit into the processor's cache, and no longer be faster."""

_BUCKETS_PER_KEY = 4
_FIRST_DIRECT_BITS = 12


class KeyIndex(Protocol):
    """A map from uint64 to slot numbers, read and written in whole arrays; entries are never removed."""

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none.

        Parameters
        ----------
        hashes : ndarray of uint64
            Hashes, in any order; the array may be read-only.

        Returns
        -------
        ndarray of intp
            One slot per hash.
        """
        ...

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet.

        Parameters
        ----------
        hashes : ndarray of uint64
            The new hashes.
        slots : ndarray of intp
            Their slots.
        """
        ...

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """The approximate memory, in bytes."""
        ...


class NumpyIndex:
    """A `KeyIndex` in NumPy alone: open addressing with linear probing.

    Notes
    -----
    A hash's first bucket is given by the upper bits of its product with 2**64 divided by the golden ratio, which
    spreads consecutive hashes evenly. At most half of the buckets are in use. Hash and slot of a bucket are side by
    side, so that a lookup in a large table waits for memory once. Large batches are looked up with few calls of NumPy;
    a few rows, and the last few that collide with other hashes, are faster one by one.

    Examples
    --------
    >>> index = NumpyIndex()
    >>> index.insert(np.array([7, 2**63 + 9], dtype=np.uint64), np.array([0, 1]))
    >>> index.lookup(np.array([2**63 + 9, 8], dtype=np.uint64)).tolist()
    [1, -1]
    """

    def __init__(self) -> None:
        self._count = 0
        self._allocate(_FIRST_BITS)

    def _allocate(self, bits: int) -> None:
        self._bits = bits
        self._table = np.zeros(1 << bits, _BUCKET)
        # Views of the same buckets; the numbers are of Python.
        self._hashes, self._numbers = self._table["hash"], self._table["number"]
        self._words = self._table.view(np.uint64).data

    def _first_bucket(self, hashes: Words) -> Slots:
        return ((hashes * np.uint64(_SPREAD)) >> np.uint64(64 - self._bits)).view(np.intp)

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none."""
        if len(hashes) <= _ONE_BY_ONE:
            return np.array(self._find(hashes.tolist()), np.intp)
        buckets = self._first_bucket(hashes)
        found = self._table.take(buckets)
        slots: Slots = found["number"] - 1
        pending = ((found["hash"] != hashes) & (slots >= 0)).nonzero()[0]
        buckets = buckets[pending]
        while len(pending) > _ONE_BY_ONE:
            buckets = (buckets + 1) & (len(self._table) - 1)
            found = self._table.take(buckets)
            next_slots = found["number"] - 1
            slots[pending] = next_slots
            other = ((found["hash"] != hashes[pending]) & (next_slots >= 0)).nonzero()[0]
            pending, buckets = pending[other], buckets[other]
        if len(pending):
            slots[pending] = self._find(hashes[pending].tolist())
        return slots

    def _find(self, hashes: list[int]) -> list[int]:
        """Return the slot of each hash, or -1 if it has none."""
        words, shift, last = self._words, 64 - self._bits, 2 * len(self._table) - 2
        slots = []
        for hash in hashes:
            word = (hash * _SPREAD & _WORD) >> shift << 1
            while (number := words[word + 1]) and words[word] != hash:
                word = word + 2 & last
            slots.append(number - 1)
        return slots

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet."""
        self._reserve(self._count + len(hashes))
        self._place(hashes, slots + 1)
        self._count += len(hashes)

    def _reserve(self, count: int) -> None:
        bits = self._bits
        while 2 * count > 1 << bits:
            bits += 1
        if bits != self._bits:
            used = self._table[self._numbers > 0]
            self._allocate(bits)
            self._place(used["hash"], used["number"])

    def _place(self, hashes: Words, numbers: Slots) -> None:
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

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The memory, in bytes."""
        return int(self._table.nbytes)


class PandasIndex:
    """A `KeyIndex` over the hash table inside pandas, which looks up without the GIL.

    Notes
    -----
    The table is not public API of pandas; `make_index` uses it only if it passes a check, once in a process.
    """

    def __init__(self) -> None:
        from pandas._libs.hashtable import Int64HashTable

        self._table: Any = Int64HashTable()

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none."""
        slots: Slots = self._table.lookup(hashes.view(np.int64))
        return slots

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet."""
        self._table.map_keys_to_values(hashes.view(np.int64), slots.astype(np.int64, copy=False))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """The approximate memory, in bytes."""
        return _BYTES_PER_BUCKET * (1 << max(_FIRST_BITS, (4 * len(self) // 3).bit_length()))


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


def _pandas_behaves() -> bool:
    hashes = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    try:
        index = PandasIndex()
        index.insert(hashes[:3], np.array([5, 0, 1]))
        frozen = hashes[::-1].copy()
        frozen.flags.writeable = False
        slots = index.lookup(frozen)
        return slots.dtype == np.intp and slots.tolist() == [-1, 1, 0, 5] and len(index) == 3
    except (ImportError, AttributeError, TypeError, ValueError):
        return False


@functools.cache
def _fastest() -> Callable[[], KeyIndex]:
    """Return the fastest kind of index that works with the installed pandas."""
    return PandasIndex if _pandas_behaves() else NumpyIndex


def _has_pandas() -> bool:
    """Return whether this process has imported pandas."""
    module = sys.modules.get("pandas")
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def make_index() -> KeyIndex:
    """Return an empty index of the fastest kind that works here without importing pandas.

    Notes
    -----
    The import would take longer than all other steps of a job's start. It is not made later in a thread of the engine
    either: where another thread begins to import a part of pandas at the same time, both imports fail.

    Examples
    --------
    >>> len(make_index())
    0
    """
    return _fastest()() if _has_pandas() else NumpyIndex()
