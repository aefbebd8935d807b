"""Index in NumPy alone, which grows in steps."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.index.buckets import ONE_BY_ONE, Buckets
from dask_elastic.state.index.key_index import Slots, Words

_FIRST_BITS = 10
_LEAST_MOVED = 1_024
_MOVED_PER_KEY = 8
"""Buckets whose entries move for each key that is added; two would be enough until the next growth."""

_TOUCHED_PER_KEY = 32
"""Buckets of the next table whose memory is allocated for each key that is added; 16 would be enough."""


class NumpyIndex:
    """A `KeyIndex` in NumPy alone, which grows in steps.

    Notes
    -----
    At most half of the buckets are in use. A table that is full is followed by one of twice the size, whose memory is
    allocated with the insertions before. The entries move with the next insertions, some for each: nothing waits until
    all are moved. Meanwhile a hash that the new table does not have is looked up in the old one.

    Examples
    --------
    >>> index = NumpyIndex()
    >>> index.insert(np.array([7, 2**63 + 9], dtype=np.uint64), np.array([0, 1]))
    >>> index.lookup(np.array([2**63 + 9, 8], dtype=np.uint64)).tolist()
    [1, -1]
    """

    def __init__(self) -> None:
        self._count = 0
        self._buckets = Buckets(_FIRST_BITS)
        # The table before, whose entries move, and how many of its buckets are done.
        self._before: Buckets | None = None
        self._done = 0
        self._next: Buckets | None = None

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none."""
        if len(hashes) <= ONE_BY_ONE:
            return np.array(self._find(hashes.tolist()), np.intp)
        slots = self._buckets.lookup(hashes)
        if self._before is not None:
            missing = (slots < 0).nonzero()[0]
            slots[missing] = self._before.lookup(hashes[missing])
        return slots

    def _find(self, hashes: list[int]) -> list[int]:
        slots = self._buckets.find(hashes)
        if self._before is not None and min(slots, default=0) < 0:
            before = self._before.find(hashes)
            return [new if new >= 0 else old for new, old in zip(slots, before, strict=True)]
        return slots

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet."""
        self._reserve(self._count + len(hashes))
        self._move(max(_LEAST_MOVED, _MOVED_PER_KEY * len(hashes)))
        self._buckets.place(hashes, slots + 1)
        self._count += len(hashes)
        self._prepare(len(hashes))

    def _reserve(self, count: int) -> None:
        bits = self._buckets.bits
        while 2 * count > 1 << bits:
            bits += 1
        if bits != self._buckets.bits:
            self._move(len(self._buckets))
            prepared, self._next = self._next, None
            following = prepared if prepared is not None and prepared.bits == bits else Buckets(bits)
            self._before, self._buckets = self._buckets, following

    def _move(self, buckets: int) -> None:
        """Move the entries of so many buckets of the table before."""
        if self._before is None:
            return
        self._buckets.place(*self._before.entries(self._done, buckets))
        self._done += buckets
        if self._done >= len(self._before):
            self._before, self._done = None, 0

    def _prepare(self, added: int) -> None:
        """Have memory allocated for the next table once three quarters of the keys are there that this one may have."""
        if self._before is None and 8 * self._count > 3 * len(self._buckets):
            if self._next is None:
                self._next = Buckets(self._buckets.bits + 1)
            self._next.touch(_TOUCHED_PER_KEY * added)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The memory, in bytes."""
        return sum(table.nbytes for table in (self._buckets, self._before, self._next) if table is not None)
