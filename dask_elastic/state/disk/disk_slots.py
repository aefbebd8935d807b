"""Columnar storage of slots in files."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.state.disk.blobs import ObjectColumn, ObjectLists
from dask_elastic.state.disk.deferred_cut import DeferredCut
from dask_elastic.state.disk.mapped_array import MappedArray
from dask_elastic.state.disk.unnamed_files import UnnamedFiles
from dask_elastic.state.index import Slots
from dask_elastic.state.ragged_column import Arrays, RaggedColumn
from dask_elastic.state.slots import EMPTY, LIVE, TOMBSTONE, Column, Counts, PreparedArrays, SlotArrays
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.lock import MakeLock

_LEAST_GROWTH = 4096


class MappedArrays(Arrays):
    """Makes the arrays of ragged columns in files.

    Parameters
    ----------
    files : UnnamedFiles
        Makes the files.
    """

    def __init__(self, files: UnnamedFiles) -> None:
        self._files = files

    def zeros(self, dtype: np.dtype[Any], length: int) -> Any:
        """Return an array of zeros."""
        return MappedArray(self._files, dtype, length)

    def extended(self, array: Any, length: int) -> Any:
        """Return the array with zeros appended up to a length."""
        array.grow(length)
        return array


class DiskSlots(SlotArrays):
    """Slots in files: a record per slot with the key's hashes and all fields of fixed size; files for the others.

    Parameters
    ----------
    fields : sequence of Field
        The fields of state.
    make_lock : callable
        Makes the locks of ragged columns.
    shards : int
        The number of shards.
    files : UnnamedFiles
        Makes the files.

    Notes
    -----
    Shards and marks are arrays of their own, because cuts read those of all slots. How many slots of each shard are
    live, and have changed, is counted when they are written: reports would otherwise read the marks of all slots every
    second. Tasks write at the same time, but no two of them a slot of the same shard.
    """

    def __init__(self, fields: Sequence[Field], make_lock: MakeLock, shards: int, files: UnnamedFiles) -> None:
        self._files = files
        self._live = np.zeros(shards, np.int64)
        self._changed = np.zeros(shards, np.int64)
        self._cut: weakref.ref[DeferredCut] | None = None
        super().__init__(fields, make_lock, shards)

    @property
    def cut(self) -> DeferredCut | None:
        """The cut that is being copied; None if there is none, or no code will read it any more."""
        return None if self._cut is None else self._cut()

    def watch(self, cut: DeferredCut | None) -> None:
        """Keep rows for a cut before they change; the caller holds all gates."""
        self._cut = None if cut is None else weakref.ref(cut)

    @property
    def kinds(self) -> frozenset[type]:
        """The classes of all Python objects that were ever written."""
        return frozenset(kind for column in self.values for kind in getattr(column, "kinds", ()))

    def write(self, slots: Slots, values: Sequence[Column | None], mark: Any) -> None:
        """Set values and marks of slots; see `SlotArrays.write`."""
        before = self._kept_for_cut(slots)
        super().write(slots, values, mark)
        self._count(slots, before, mark)

    def set_marks(self, slots: Slots, marks: npt.NDArray[np.uint8]) -> None:
        """Set the marks of slots, whose values stay."""
        before = self.marks.take(slots)
        super().set_marks(slots, marks)
        self._count(slots, before, marks)

    def reset(self, slots: Slots, mark: int = EMPTY) -> None:
        """Set slots to their initial state."""
        before = self._kept_for_cut(slots)
        super().reset(slots, mark)
        self._count(slots, before, mark)

    def _kept_for_cut(self, slots: Slots) -> npt.NDArray[np.uint8]:
        """Keep rows that a cut has not copied yet; return the marks."""
        cut = self.cut
        if cut is not None:
            cut.keep(self, slots)
        return self.marks.take(slots)

    def _count(self, slots: Slots, before: npt.NDArray[np.uint8], after: Any) -> None:
        other = np.flatnonzero(before != after)
        if not len(other):
            return
        old, new = before[other], np.broadcast_to(np.asarray(after, np.uint8), before.shape)[other]
        shards, places = np.unique(self.shards.take(slots[other]), return_inverse=True)
        for counted, bit in ((self._live, LIVE), (self._changed, TOMBSTONE)):
            difference = (new & bit).astype(np.int64) // bit - (old & bit) // bit
            counted[shards] += np.bincount(places, difference, len(shards)).astype(np.int64)

    def windows(self, size: int | None = None, start: int = 0) -> Iterator[slice]:
        """Yield all used slots from one on in ranges; what was mapped for a range is unmapped if it is too much."""
        for window in super().windows(size, start):
            yield window
            self._files.touched(window.stop - window.start)

    def counts(self, shards: int) -> tuple[Counts, Counts]:
        """Return, for each shard, how many slots have changed since the last extract, and are live."""
        return self._changed.copy(), self._live.copy()

    def clear_changes(self) -> None:
        """Clear the marks of all changes; the caller holds all gates."""
        super().clear_changes()
        self._changed[:] = 0

    def bytes_by_shard(self, shards: int, key_bytes: float) -> Counts:
        """Return the bytes of the live slots of each shard; lists and objects count with their mean."""
        lists = sum(column.nbytes_in_use for column in self.values if hasattr(column, "nbytes_in_use"))
        per_key = self.slot_bytes() + key_bytes + lists / max(1, int(self._live.sum()))
        nbytes: Counts = (self._live * per_key).astype(np.int64)
        return nbytes

    def _make_columns(self, capacity: int) -> None:
        self._records = MappedArray(self._files, _record(self.fields), capacity, _initial(self.fields))
        self.hashes = self._records.field("hash")  # type: ignore[assignment]
        self.checks = self._records.field("check")  # type: ignore[assignment]
        self.shards = MappedArray(self._files, np.dtype(np.int32), capacity)  # type: ignore[assignment]
        self.marks = MappedArray(self._files, np.dtype(np.uint8), capacity)  # type: ignore[assignment]
        self.values = [self._column(number, field, capacity) for number, field in enumerate(self.fields)]

    def _column(self, number: int, field: Field, capacity: int) -> Any:
        if field.is_object:
            kind = ObjectLists if field.ragged else ObjectColumn
            return kind(self._files, capacity, self.make_lock)
        if field.ragged:
            return RaggedColumn(field.dtype, capacity, self.make_lock, MappedArrays(self._files))
        return self._records.field(str(number))

    def bytes_to_grow(self, needed: int) -> int:
        """Return the memory that `grow` needs: none."""
        return 0

    def extends(self, needed: int) -> bool:
        """Return False: only arrays in memory are extended while sessions go on."""
        return False

    def _doubled(self, needed: int) -> int:
        # Files are extended in place, so that no room has to be kept for copies.
        return max(needed, self.capacity + max(self.capacity // 8, _LEAST_GROWTH))

    def prepared(self, needed: int, address_space: int = 0) -> None:
        """Return nothing: files are extended in place."""
        return

    def grow(self, needed: int, prepared: PreparedArrays | None = None) -> None:
        """Allocate space for at least `needed` slots; after an error the capacity is the one before."""
        capacity = self._doubled(needed)
        self._records.grow(capacity)
        self.shards.grow(capacity)  # type: ignore[attr-defined]
        for column, field in zip(self.values, self.fields, strict=True):
            if field.is_object:
                column.blobs.grow(capacity)
            elif field.ragged:
                column.grow(capacity - self.capacity)
        # The capacity is the number of marks, so these come last.
        self.marks.grow(capacity)  # type: ignore[attr-defined]
        self._grow_uncopied()

    def slot_bytes(self) -> float:
        """Return the bytes of one slot without its lists and objects."""
        return float(self._records.dtype.itemsize + 5 + 16 * sum(f.ragged or f.is_object for f in self.fields))

    def list_bytes(self, slots: Slots) -> npt.NDArray[np.float64]:
        """Return the bytes of each slot's lists and objects."""
        total = np.zeros(len(slots))
        for column, field in zip(self.values, self.fields, strict=True):
            if field.is_object:
                total += column.blobs.lengths(slots)
            elif field.ragged:
                total += column.lengths(slots) * field.dtype.itemsize
        return total


def _in_record(fields: Sequence[Field]) -> list[tuple[str, Field]]:
    return [(str(number), field) for number, field in enumerate(fields) if not field.ragged and not field.is_object]


def _record(fields: Sequence[Field]) -> np.dtype[Any]:
    columns = [(name, field.dtype) for name, field in _in_record(fields)]
    # The widest first, so that records have no gaps.
    columns.sort(key=lambda column: -column[1].itemsize)
    return np.dtype([("hash", np.uint64), ("check", np.uint64), *columns], align=True)


def _initial(fields: Sequence[Field]) -> npt.NDArray[Any]:
    initial = np.zeros(1, _record(fields))
    for name, field in _in_record(fields):
        initial[name] = field.fresh(1)
    return initial
