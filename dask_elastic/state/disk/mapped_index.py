"""An index from 64-bit hashes to slots in a file."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.disk.mapped_array import MappedArray
from dask_elastic.state.disk.unnamed_files import UnnamedFiles
from dask_elastic.state.index import Slots, Words

_FIRST_BITS = 12
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_BUCKET = np.dtype([("hash", np.uint64), ("slot", np.int64)])
_COPIED_AT_ONCE = 1 << 16


class MappedIndex:
    """A `KeyIndex` in a file: open addressing with linear probing, one page to read for most lookups.

    Parameters
    ----------
    files : UnnamedFiles
        Makes the file.

    Notes
    -----
    Buckets store the slot plus one, so that a new file is an empty table. At most two thirds of the buckets are in use.
    The table is extended by copying it in the order of its buckets. Their order in the new table is almost the same, so
    that the disk reads and writes one page after the other.

    Examples
    --------
    >>> import tempfile
    >>> index = MappedIndex(UnnamedFiles(tempfile.gettempdir()))
    >>> index.insert(np.array([7, 2**63 + 9], dtype=np.uint64), np.array([0, 1]))
    >>> index.lookup(np.array([2**63 + 9, 8], dtype=np.uint64)).tolist()
    [1, -1]
    """

    def __init__(self, files: UnnamedFiles) -> None:
        self._files = files
        self._count = 0
        self._bits = _FIRST_BITS
        self._table = MappedArray(files, _BUCKET, 1 << _FIRST_BITS)

    def _first_bucket(self, hashes: Words) -> Slots:
        return ((hashes * _SPREAD) >> np.uint64(64 - self._bits)).astype(np.intp)

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none."""
        buckets = self._first_bucket(hashes)
        found = self._table.take(buckets)
        slots: Slots = found["slot"] - 1
        pending = np.flatnonzero((found["hash"] != hashes) & (slots >= 0))
        buckets = buckets[pending]
        while len(pending):
            buckets = (buckets + 1) & (len(self._table) - 1)
            found = self._table.take(buckets)
            slots[pending] = found["slot"] - 1
            other = (found["hash"] != hashes[pending]) & (found["slot"] > 0)
            pending, buckets = pending[other], buckets[other]
        return slots

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet."""
        self._reserve(self._count + len(hashes))
        added = np.empty(len(hashes), _BUCKET)
        added["hash"], added["slot"] = hashes, slots + 1
        self._place(added)
        self._count += len(hashes)

    def _reserve(self, count: int) -> None:
        bits = self._bits
        while 3 * count > 2 << bits:
            bits += 1
        if bits == self._bits:
            return
        old, self._table, self._bits = self._table, MappedArray(self._files, _BUCKET, 1 << bits), bits
        for start in range(0, len(old), _COPIED_AT_ONCE):
            some = old[start : start + _COPIED_AT_ONCE]
            self._place(some[some["slot"] > 0])

    def _place(self, added: np.ndarray) -> None:
        buckets = self._first_bucket(added["hash"])
        while len(added):
            free = np.flatnonzero(self._table.take(buckets)["slot"] == 0)
            # If several hashes want one free bucket, the last write wins it and the others probe on.
            self._table[buckets[free]] = added[free]
            won = free[self._table.take(buckets[free])["slot"] == added["slot"][free]]
            lost = np.ones(len(added), np.bool_)
            lost[won] = False
            added, buckets = added[lost], (buckets[lost] + 1) & (len(self._table) - 1)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The size on disk, in bytes."""
        return len(self._table) * _BUCKET.itemsize
