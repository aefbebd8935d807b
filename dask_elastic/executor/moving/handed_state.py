"""Encoded state of a shard that is handed over in parts, without what has changed since they were taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.codec import IDENTITY
from dask_elastic.state.index import Words
from dask_elastic.state.key_table import KeyTable
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of

_HASH, _CHECK, _, _DELETED = range(len(IDENTITY))

Mask = npt.NDArray[np.bool_]

_COLUMNS = 64
"""State with so many columns is worth the least bytes at once; with more columns, the bytes of each count."""


def bytes_at_once(nbytes: float, columns: int) -> float:
    """Return how many bytes of state to handle at once, given those of a few columns.

    Each column costs some 20 us, however few keys there are: with hundreds of columns, parts of a fixed size would take
    ten times as long in all as larger ones.

    Examples
    --------
    >>> bytes_at_once(1000, 10), bytes_at_once(1000, 640)
    (1000, 10000)
    """
    return nbytes * max(1, columns // _COLUMNS)


class HandedState:
    """The state of some keys in parts, each of which is brought up to date when it is taken.

    Parameters
    ----------
    parts : iterable of RecordBatch
        Encoded state; no key is in two of them.
    changes : sequence of RecordBatch
        Encoded state that was newer each time, with tombstones.

    Examples
    --------
    >>> from dask_elastic.state.codec import encode, StateRows
    >>> def state(hashes, deleted=False):
    ...     words, none = np.array(hashes, np.uint64), np.zeros(len(hashes), np.uint64)
    ...     keys = pa.record_batch({"key": hashes})
    ...     return encode(StateRows(words, none, none.astype(np.int32), keys, (), [], np.full(len(hashes), deleted)))
    >>> handed = HandedState([state([1, 2]), state([3, 4])], [state([2, 5]), state([4], deleted=True)])
    >>> [part["key"].to_pylist() for part in iter(lambda: handed.take(10), None)]
    [[1], [3], [2, 5]]
    """

    def __init__(self, parts: Iterable[pa.RecordBatch], changes: Sequence[pa.RecordBatch] = ()) -> None:
        self._changed = _Identities()
        newest = [self._changed.add(batch) for batch in reversed(changes)]
        self._parts = deque(parts)
        self._newest = deque(reversed(newest))
        self._current: pa.RecordBatch | None = None

    def take(self, rows: int, nbytes: float = np.inf) -> pa.RecordBatch | None:
        """Return the next part, and forget it; None if nothing is left.

        Parameters
        ----------
        rows, nbytes : int, float
            The rows and bytes that it may have, with few columns; see `bytes_at_once`. It has one row at least.

        Returns
        -------
        RecordBatch or None
            Encoded state without tombstones.
        """
        while self._current is None or not self._current.num_rows:
            if self._parts:
                self._current = self._changed.without(self._parts.popleft())
            elif self._newest:
                self._current = self._newest.popleft()
            else:
                return None
        left = self._current
        nbytes = bytes_at_once(nbytes, left.num_columns)
        count = max(1, min(rows, left.num_rows, int(min(nbytes * left.num_rows / max(left.nbytes, 1), left.num_rows))))
        self._current = left.slice(count)
        return left.slice(0, count)


class _Identities:
    """The keys of encoded state."""

    def __init__(self) -> None:
        self.hashes: Words = np.empty(0, np.uint64)
        self.checks: Words = np.empty(0, np.uint64)
        self._table = KeyTable()

    def add(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """Add the keys of some state; returns the rows of those that are new and not deleted."""
        new = self._lacks(state)
        hashes, checks = (part[new] for part in _hashes(state))
        slots = np.arange(len(self.hashes), len(self.hashes) + len(hashes))
        self.hashes, self.checks = np.concatenate([self.hashes, hashes]), np.concatenate([self.checks, checks])
        self._table.add(hashes, checks, slots)
        deleted: Mask = numpy_of(state.column(_DELETED))
        return state.filter(array_of(new & ~deleted))

    def without(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of state whose keys are not in here."""
        lacking = self._lacks(state)
        return state if lacking.all() else state.filter(array_of(lacking))

    def _lacks(self, state: pa.RecordBatch) -> Mask:
        if not len(self.hashes):
            return np.ones(state.num_rows, np.bool_)
        lacking: Mask = self._table.find(*_hashes(state), self, verify=True) < 0
        return lacking


def _hashes(state: pa.RecordBatch) -> tuple[Words, Words]:
    return numpy_of(state.column(_HASH)), numpy_of(state.column(_CHECK))
