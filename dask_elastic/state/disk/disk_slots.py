"""Columnar storage of slots in files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.state.disk.blobs import ObjectColumn, ObjectLists
from dask_elastic.state.disk.mapped_array import MappedArray
from dask_elastic.state.disk.unnamed_files import UnnamedFiles
from dask_elastic.state.index import Slots
from dask_elastic.state.ragged_column import Arrays, RaggedColumn
from dask_elastic.state.slots import SlotArrays
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
    files : UnnamedFiles
        Makes the files.

    Notes
    -----
    Shards and marks are arrays of their own, because reports and cuts read those of all slots.
    """

    def __init__(self, fields: Sequence[Field], make_lock: MakeLock, files: UnnamedFiles) -> None:
        self._files = files
        super().__init__(fields, make_lock)

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
            return kind(self._files, capacity, self._make_lock)
        if field.ragged:
            return RaggedColumn(field.dtype, capacity, self._make_lock, MappedArrays(self._files))
        return self._records.field(str(number))

    def bytes_to_grow(self, needed: int) -> int:
        """Return the memory that `grow` needs: none."""
        return 0

    def _grown(self, needed: int) -> int:
        # Files are extended in place, so that no room has to be kept for copies.
        return max(needed, self.capacity + max(self.capacity // 8, _LEAST_GROWTH))

    def grow(self, needed: int) -> None:
        """Allocate space for at least `needed` slots; after an error the capacity is the one before."""
        capacity = self._grown(needed)
        self._records.grow(capacity)
        self.shards.grow(capacity)  # type: ignore[attr-defined]
        for column, field in zip(self.values, self.fields, strict=True):
            if field.is_object:
                column.blobs.grow(capacity)
            elif field.ragged:
                column.grow(capacity - self.capacity)
        # The capacity is the number of marks, so these come last.
        self.marks.grow(capacity)  # type: ignore[attr-defined]

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
