"""Storage of a ragged field: one list per slot, the elements of all slots in one buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.state.index import Slots
from dask_elastic.topology.aggregates.ragged import Ragged, offsets_of, spans
from dask_elastic.vocab.lock import Lock, MakeLock, NoLock

_FIRST_ROOM = 256
_COPIED_AT_ONCE = 1 << 16
_LEAST_ROW_LENGTH = 16
"""Lists of equal length are copied as rows from this length on; shorter ones are copied element by element."""


class Arrays:
    """Makes the arrays of ragged columns, in memory."""

    def zeros(self, dtype: np.dtype[Any], length: int) -> Any:
        """Return an array of zeros."""
        return np.zeros(length, dtype)

    def extended(self, array: Any, length: int) -> Any:
        """Return the array with zeros appended up to a length."""
        return np.concatenate([array, np.zeros(length - len(array), array.dtype)])


class RaggedColumn:
    """One list per slot, read and replaced for whole arrays of slots.

    Parameters
    ----------
    dtype : dtype
        The type of the elements.
    capacity : int
        The number of slots; all start with empty lists.
    make_lock : callable, optional
        Makes the lock that is held during each read and write.
    arrays : Arrays, optional
        Makes the arrays.

    Notes
    -----
    A list that keeps its length is overwritten in place; any other is written at the end of the buffer. When the
    buffer is full, the elements in use are copied to a new one of twice their size. Copying thus costs no more than
    writing, amortised, and about half of a new buffer is free. The lock is needed although each slot has one owner,
    because all slots share the buffer. It is the last lock in the lock order: no other is taken under it.

    Examples
    --------
    >>> column = RaggedColumn(np.dtype(np.int64), 4)
    >>> column.write(np.array([2, 0]), Ragged.of_lengths(np.array([5, 6, 7]), np.array([2, 1])))
    >>> column.take(np.array([0, 1, 2])).to_lists()
    [[7], [], [5, 6]]
    """

    def __init__(
        self, dtype: np.dtype[Any], capacity: int, make_lock: MakeLock = NoLock, arrays: Arrays | None = None
    ) -> None:
        self._lock: Lock = make_lock()
        self._arrays = arrays = arrays or Arrays()
        self._starts: npt.NDArray[np.int64] = arrays.zeros(np.dtype(np.int64), capacity)
        self._lengths: npt.NDArray[np.int64] = arrays.zeros(np.dtype(np.int64), capacity)
        self._data: npt.NDArray[Any] = arrays.zeros(dtype, _FIRST_ROOM)
        self._used = 0
        self._elements = 0

    @property
    def nbytes_in_use(self) -> int:
        """The bytes of the elements of all lists."""
        return self._elements * self.dtype.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        dtype: np.dtype[Any] = self._data.dtype
        return dtype

    def grow(self, more: int) -> None:
        """Add slots with empty lists."""
        capacity = len(self._starts) + more
        starts = self._arrays.extended(self._starts, capacity)
        self._starts, self._lengths = starts, self._arrays.extended(self._lengths, capacity)

    def take(self, slots: Slots) -> Ragged:
        """Return copies of the slots' lists.

        Parameters
        ----------
        slots : ndarray of intp
            The slots.

        Returns
        -------
        Ragged
            One list per slot.
        """
        with self._lock:
            lengths = self._lengths.take(slots)
            return Ragged(_gathered(self._data, self._starts.take(slots), lengths), offsets_of(lengths))

    def write(self, slots: Slots, lists: Ragged) -> None:
        """Replace the slots' lists; the slots must be distinct.

        Parameters
        ----------
        slots : ndarray of intp
            The slots.
        lists : Ragged
            One list per slot.
        """
        lengths = lists.lengths
        with self._lock:
            before = self._lengths.take(slots)
            self._elements += int(lengths.sum()) - int(before.sum())
            same = lengths == before
            if same.all():
                _scatter(self._data, self._starts.take(slots), lengths, lists.values)
                return
            if same.any():
                stays = lists.take(np.flatnonzero(same))
                _scatter(self._data, self._starts.take(slots[same]), stays.lengths, stays.values)
                changed = np.flatnonzero(~same)
                slots, lists = slots[changed], lists.take(changed)
            self._append(slots, lists)

    def _append(self, slots: Slots, lists: Ragged) -> None:
        self._lengths[slots] = 0
        self._reserve(len(lists.values))
        end = self._used + len(lists.values)
        self._data[self._used : end] = lists.values
        self._starts[slots] = self._used + lists.offsets[:-1]
        self._lengths[slots] = lists.lengths
        self._used = end

    def _reserve(self, more: int) -> None:
        if self._used + more <= len(self._data):
            return
        live = int(self._lengths[:].sum())
        data = self._arrays.zeros(self.dtype, max(2 * (live + more), _FIRST_ROOM))
        used = 0
        for start in range(0, len(self._lengths), _COPIED_AT_ONCE):
            kept = start + np.flatnonzero(self._lengths[start : start + _COPIED_AT_ONCE])
            lengths = self._lengths.take(kept)
            values = _gathered(self._data, self._starts.take(kept), lengths)
            data[used : used + len(values)] = values
            self._starts[kept] = used + offsets_of(lengths)[:-1]
            used += len(values)
        self._data, self._used = data, used

    def clear(self, slots: Slots) -> None:
        """Empty the slots' lists."""
        with self._lock:
            self._elements -= int(self._lengths.take(slots).sum())
            self._lengths[slots] = 0

    def lengths(self, slots: Slots) -> npt.NDArray[np.int64]:
        """Return the lengths of the slots' lists."""
        return self._lengths.take(slots)

    def sample(self, most: int) -> list[Any]:
        """Return the first elements of up to about `most` nonempty lists."""
        with self._lock:
            kept = np.flatnonzero(self._lengths[:])
            chosen = kept[:: max(1, len(kept) // most)]
            return list(self._data[self._starts[chosen]])


def _gathered(data: npt.NDArray[Any], starts: Slots, lengths: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    starts, width = _uniform(starts, lengths) if isinstance(data, np.ndarray) else (starts, 0)
    if width:
        # Equally long lists are common, and one copy per list is faster than one per element.
        # Indexing instead of `take`: `take` would first copy the overlapping rows to an array.
        return _rows(data, width)[starts].reshape(-1)
    return data.take(spans(starts, lengths))


def _scatter(data: npt.NDArray[Any], starts: Slots, lengths: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
    starts, width = _uniform(starts, lengths) if isinstance(data, np.ndarray) else (starts, 0)
    if width:
        _rows(data, width)[starts] = values.reshape(-1, width)
    else:
        data[spans(starts, lengths)] = values


def _uniform(starts: Slots, lengths: npt.NDArray[np.int64]) -> tuple[Slots, int]:
    """Return the starts of the nonempty lists and their length; all starts and 0 if it differs or is too small."""
    if not len(lengths):
        return starts, 0
    width = int(lengths.max())
    if width < _LEAST_ROW_LENGTH:
        return starts, 0
    whole = lengths == width
    if np.count_nonzero(whole) < np.count_nonzero(lengths):
        return starts, 0
    return starts[whole], width


def _rows(data: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Return a view whose row i is the elements i to i + `width`."""
    step = data.strides[0]
    return np.lib.stride_tricks.as_strided(data, (len(data) - width + 1, width), (step, step))
