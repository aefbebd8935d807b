"""One string of bytes per slot, in files: columns of Python objects, which memory-mapped arrays cannot hold."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from dask_elastic.state.disk.mapped_array import MappedArray
from dask_elastic.state.disk.unnamed_files import ROWS_AT_ONCE, UnnamedFiles
from dask_elastic.state.index import Slots
from dask_elastic.state.stored_values import as_objects
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.vocab.errors import StateError
from dask_elastic.vocab.lock import MakeLock, NoLock

_PLACE = np.dtype([("start", np.int64), ("length", np.int64)])
_FIRST_BYTES = 1 << 16
_COPIED_AT_ONCE = 1 << 13
_TEXT, _PICKLE = b"s", b"p"


class Blobs:
    """A string of bytes for each slot, empty at first.

    Parameters
    ----------
    files : UnnamedFiles
        Makes the files.
    capacity : int
        The number of slots.
    make_lock : callable, optional
        Makes the lock that is held during each read and write.

    Notes
    -----
    What is written goes to the end of a file, one page after the other. A full file is extended if at least half of it
    is in use; otherwise the bytes in use are copied to a new one. The lock is the last in the lock order.

    Examples
    --------
    >>> import tempfile
    >>> blobs = Blobs(UnnamedFiles(tempfile.gettempdir()), 4)
    >>> blobs.write(np.array([2, 0]), [b"two", b"zero"])
    >>> blobs.read(np.array([0, 1, 2]))
    [b'zero', b'', b'two']
    """

    def __init__(self, files: UnnamedFiles, capacity: int, make_lock: MakeLock = NoLock) -> None:
        self._files = files
        self._lock = make_lock()
        self._places = MappedArray(files, _PLACE, capacity)
        self._data = MappedArray(files, np.dtype(np.uint8), _FIRST_BYTES)
        self._used = 0
        self._live = 0

    def grow(self, capacity: int) -> None:
        """Add slots."""
        self._places.grow(capacity)

    def read(self, slots: Slots) -> list[bytes]:
        """Return the bytes of slots."""
        with self._lock:
            return self._read(self._places.take(slots))

    def _read(self, places: npt.NDArray[Any]) -> list[bytes]:
        found: list[bytes] = []
        # A memoryview: slicing an ndarray takes several times as long.
        data = self._data.bytes
        starts, ends = places["start"], places["start"] + places["length"]
        for first in range(0, len(places), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            bounds = zip(starts[some].tolist(), ends[some].tolist(), strict=True)
            found += [bytes(data[start:end]) for start, end in bounds]
            self._files.touched(ROWS_AT_ONCE)
        return found

    def write(self, slots: Slots, blobs: list[bytes]) -> None:
        """Replace the bytes of slots, which must be distinct."""
        joined = b"".join(blobs)
        lengths = np.fromiter(map(len, blobs), np.int64, len(blobs))
        with self._lock:
            # Reserved first: a full disk then changes nothing.
            self._reserve(len(joined))
            self._live += len(joined) - int(self._places.take(slots)["length"].sum())
            places = np.empty(len(slots), _PLACE)
            places["length"] = lengths
            places["start"] = self._used + np.cumsum(lengths) - lengths
            self._data[self._used : self._used + len(joined)] = np.frombuffer(joined, np.uint8)
            self._places[slots] = places
            self._used += len(joined)

    def _reserve(self, more: int) -> None:
        size = len(self._data)
        if self._used + more <= size:
            return
        if 2 * self._live >= self._used:
            self._data.grow(max(size + size // 4, self._used + more))
            return
        fresh = MappedArray(self._files, self._data.dtype, max(self._live + self._live // 2 + more, _FIRST_BYTES))
        used = 0
        for start in range(0, len(self._places), _COPIED_AT_ONCE):
            places = self._places[start : start + _COPIED_AT_ONCE]
            joined = b"".join(self._read(places))
            fresh[used : used + len(joined)] = np.frombuffer(joined, np.uint8)
            places["start"] = used + np.cumsum(places["length"]) - places["length"]
            used += len(joined)
        self._data, self._used = fresh, used

    @property
    def nbytes_in_use(self) -> int:
        """The bytes of all slots."""
        return self._live

    def lengths(self, slots: Slots) -> npt.NDArray[np.int64]:
        """Return the number of bytes of slots."""
        lengths: npt.NDArray[np.int64] = self._places.take(slots)["length"]
        return lengths


class ObjectColumn:
    """A column of Python objects, one per slot, pickled; strings are stored as they are.

    Parameters
    ----------
    files, capacity, make_lock
        As for `Blobs`.

    Attributes
    ----------
    kinds : set of type
        The classes of all objects that were ever written.
    """

    dtype = np.dtype(object)

    def __init__(self, files: UnnamedFiles, capacity: int, make_lock: MakeLock = NoLock) -> None:
        self.blobs = Blobs(files, capacity, make_lock)
        self.kinds: set[type] = set()

    @property
    def nbytes_in_use(self) -> int:
        """The bytes of all slots."""
        return self.blobs.nbytes_in_use

    def take(self, slots: Slots) -> npt.NDArray[Any]:
        """Return the objects of slots, None where none was written."""
        return as_objects([_loaded(blob) for blob in self.blobs.read(slots)])

    def __setitem__(self, slots: Slots, values: npt.NDArray[Any]) -> None:
        """Replace the objects of slots; one value stands for all."""
        dumped = [_dumped(value) for value in values]
        self.kinds.update(map(type, values))
        self.blobs.write(slots, dumped if len(dumped) == len(slots) else dumped * len(slots))


class ObjectLists:
    """A ragged column of Python objects: the list of a slot is pickled as one.

    Parameters
    ----------
    files, capacity, make_lock
        As for `Blobs`.

    Attributes
    ----------
    kinds : set of type
        The classes of all objects that were ever written.
    """

    dtype = np.dtype(object)

    def __init__(self, files: UnnamedFiles, capacity: int, make_lock: MakeLock = NoLock) -> None:
        self.blobs = Blobs(files, capacity, make_lock)
        self.kinds: set[type] = set()

    @property
    def nbytes_in_use(self) -> int:
        """The bytes of all slots."""
        return self.blobs.nbytes_in_use

    def take(self, slots: Slots) -> Ragged:
        """Return copies of the slots' lists."""
        lists = [_loaded(blob) or [] for blob in self.blobs.read(slots)]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        return Ragged.of_lengths(as_objects([value for values in lists for value in values]), lengths)

    def write(self, slots: Slots, lists: Ragged) -> None:
        """Replace the slots' lists; the slots must be distinct."""
        values = lists.values
        self.kinds.update(map(type, values))
        bounds: Iterable[tuple[int, int]] = pairwise(lists.offsets.tolist())
        self.blobs.write(slots, [_dumped(values[a:b].tolist()) if b > a else b"" for a, b in bounds])

    def clear(self, slots: Slots) -> None:
        """Empty the slots' lists."""
        self.blobs.write(slots, [b""] * len(slots))


def _dumped(value: Any) -> bytes:
    if value is None:
        return b""
    if type(value) is str:
        try:
            return _TEXT + value.encode()
        except UnicodeEncodeError:  # A lone surrogate; pickling supports it.
            pass
    try:
        return _PICKLE + pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):  # what pickle cannot find by its name
        return _PICKLE + _dumped_by_value(value)


def _dumped_by_value(value: Any) -> bytes:
    try:
        dumped: bytes = cloudpickle.dumps(value)
    except Exception as error:  # pickling user objects may raise anything
        raise StateError(
            f"state on disk: {type(value).__name__} cannot be pickled ({error}). Keep only objects that can, "
            "as checkpoints and moves between workers need too"
        ) from error
    return dumped


def _loaded(blob: bytes) -> Any:
    if not blob:
        return None
    return blob[1:].decode() if blob[:1] == _TEXT else pickle.loads(memoryview(blob)[1:])
