"""The cut of a store on disk: its rows are copied while tasks go on, and kept when a task changes them before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.codec import EncodedRows, StateRows, encode
from dask_elastic.state.disk.kept_rows import KeptRows, with_keys
from dask_elastic.state.disk.mapped_array import MappedArray
from dask_elastic.state.disk.unnamed_files import UnnamedFiles
from dask_elastic.state.index import Slots
from dask_elastic.state.slots import TOMBSTONE, Column
from dask_elastic.state.storage import CutSource
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import StateDiskError

_LIVE, _DELETED = 1, 2
_AT_ONCE = 1 << 13
"""Rows that are copied while tasks wait, at most; each time, the copy first waits for the tasks' batches."""
_MOST_RANGES = 128
_IN_MEMORY = 8 << 20
"""Slots up to which the bytes of a cut are in memory: a busy disk may take seconds to allocate a file."""
_WINDOW = 1 << 16


class KeepingSlots(Protocol):
    """Slots whose rows are kept before they change; see `DiskSlots`."""

    fields: tuple[Field, ...]
    hashes: npt.NDArray[np.uint64]
    checks: npt.NDArray[np.uint64]
    shards: npt.NDArray[np.int32]
    values: list[Column]

    def portions(self, slots: Slots) -> list[Slots]:
        """Return slots in parts whose state has a few MiB at most."""
        ...


class DeferredCut:
    """What a cut contains, as the state was when this was made; the caller holds the store's lock and all gates.

    Parameters
    ----------
    store : CutSource
        The store.
    files : UnnamedFiles
        Makes the files.
    in_full : ndarray of bool
        The shards that it contains in full; of the others it contains what has changed.

    Raises
    ------
    StateDiskError
        If there is no space for the files.

    Notes
    -----
    A byte for each slot says whether it is still to be copied. The thread that reads the rows copies them in parts, and
    holds the store's lock for each part only, so that the arrays are not replaced. A task that changes a slot first
    passes its row to `keep`. Both do this under a lock of the cut, so each row is copied once, and never while it
    changes. The order of locks is store, gates, cut, then those of columns.

    If there is no space for rows to keep, the cut fails, and the tasks go on.
    """

    def __init__(self, store: CutSource, files: UnnamedFiles, in_full: npt.NDArray[np.bool_]) -> None:
        arrays = store.slots
        self._store = store
        self._error: StateDiskError | None = None
        self._lock = arrays.make_lock()
        self._used: int = arrays.used
        self._left = _bytes(files, self._used)
        self._count = 0
        for window, wanted in arrays.chosen(in_full):
            self._count += int(np.count_nonzero(wanted))
            if wanted.any():
                deleted = arrays.marks[window] == TOMBSTONE
                self._left[window] = np.where(deleted, np.uint8(_DELETED), np.uint8(_LIVE)) * wanted
        self._kept = KeptRows(files, self._used, min(_MOST_RANGES, 1 + self._count // _AT_ONCE), arrays.make_lock)

    def keep(self, arrays: KeepingSlots, slots: Slots) -> None:
        """Keep the rows of slots that are not copied yet; called before they change, under the gate of their task."""
        if self._error is not None:
            return
        old = slots[slots < self._used]
        with self._lock:
            left = self._left.take(old)
            old = old[left != 0]
            if not len(old):
                return
            try:
                for some in arrays.portions(old):
                    self._kept.add(_rows_of(arrays, some, self._left.take(some) == _DELETED), some)
            except StateDiskError as error:
                self._error = error
                return
            # Last: the reader takes kept rows once no slot of their range is left.
            self._left[old] = 0

    def rows(self) -> EncodedRows:
        """Return the rows, which can be read once."""
        return EncodedRows(self._count, self._store.slots.kinds, self._batches)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows.

        Raises
        ------
        StateDiskError
            If rows that changed could not be kept, or a later cut has begun.
        """
        count = 0
        for slots in self._kept.ranges:
            for batch in self._copied(slots):
                count += batch.num_rows
                yield batch
            for batch in self._kept_of(slots):
                count += batch.num_rows
                yield batch
        with self._store.held():
            self._check()
            # Tasks no longer look whether they have to keep rows.
            self._store.slots.watch(None)
            empty = self._store.rows_of(np.empty(0, np.intp), np.empty(0, np.bool_))
        if count != self._count:
            raise AssertionError(f"a cut of {self._count} rows was copied as {count}")
        if not count:
            yield encode(empty)

    def _copied(self, slots: range) -> Iterator[pa.RecordBatch]:
        # A slot that is not left never will be again: only this thread and `keep` change it, both to zero.
        while len(self._next_of(slots)):
            with self._store.held(), self._lock:
                self._check()
                left = self._next_of(slots)
                if not len(left):
                    break
                some = self._store.slots.portions(left)[0]
                rows = self._store.rows_of(some, self._left.take(some) == _DELETED)
                self._left[some] = 0
            yield encode(rows)

    def _next_of(self, slots: range) -> Slots:
        """Return the next slots of a range that are left."""
        found: list[Slots] = [np.empty(0, np.intp)]
        for start in range(slots.start, slots.stop, _WINDOW):
            # A copy: NumPy raises an error if tasks keep rows while it searches.
            left = np.array(self._left[start : min(slots.stop, start + _WINDOW)])
            found.append(start + np.flatnonzero(left))
            if sum(map(len, found)) >= _AT_ONCE:
                break
        return np.concatenate(found)[:_AT_ONCE]

    def _kept_of(self, slots: range) -> Iterator[pa.RecordBatch]:
        for places, batch in self._kept.take(slots):
            for start in range(0, len(places), _AT_ONCE):
                some = places[start : start + _AT_ONCE]
                yield with_keys(batch.slice(start, len(some)), self._store.keys_of(some))
        if self._error is not None:
            raise self._error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._store.slots.cut is not self:
            raise StateDiskError(
                "the copy of state on disk was given up, because the next checkpoint has begun to copy it. Give "
                "checkpoints more time (checkpoint_interval), or use faster storage"
            )


def _bytes(files: UnnamedFiles, slots: int) -> Any:
    """Return a byte of zero for each slot."""
    return np.zeros(slots, np.uint8) if slots <= _IN_MEMORY else MappedArray(files, np.dtype(np.uint8), slots)


def _rows_of(arrays: KeepingSlots, slots: Slots, deleted: npt.NDArray[np.bool_]) -> StateRows:
    identity = arrays.hashes.take(slots), arrays.checks.take(slots), arrays.shards.take(slots)
    return StateRows(*identity, _NO_KEYS, arrays.fields, [column.take(slots) for column in arrays.values], deleted)


_NO_KEYS = pa.record_batch([], names=[])
