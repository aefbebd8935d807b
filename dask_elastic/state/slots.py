"""Columnar storage of slots: arrays that are grown, packed and read, without locks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import numpy as np
import numpy.typing as npt

from dask_elastic.state.index import Slots, Words
from dask_elastic.state.ragged_column import RaggedColumn
from dask_elastic.state.reserved_array import reserved_array
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.lock import MakeLock, NoLock

EMPTY, LIVE, TOMBSTONE, DIRTY = 0, 1, 2, 3
"""A slot's mark.

EMPTY: a key without state. LIVE: state that has not changed since the last extract, or whose changes are not tracked.
TOMBSTONE: state deleted since the last extract. DIRTY: state changed since then. The lower bit is set if there is
state, the upper one if the next extract of changes must include the slot.
"""

Counts: TypeAlias = npt.NDArray[np.int64]
"""A number for each shard."""

Column: TypeAlias = Any
"""The values of one field: an ndarray, or a `Ragged` for a ragged field."""


class PreparedArrays(NamedTuple):
    """Longer arrays for slots.

    Parameters
    ----------
    identity : tuple of ndarray
        Hashes, checks, shards and marks.
    values : list of ndarray or None
        One for each field; None for fields with lists.
    room : PreparedArrays, optional
        The reserved arrays of which these are the first part; None if they cannot be extended.
    """

    identity: tuple[npt.NDArray[Any], ...]
    values: list[Any]
    room: PreparedArrays | None = None


_FIRST_CAPACITY = 1024
_SAMPLE = 32
_WINDOW = 1 << 16
_PORTION_BYTES = 4 << 20

_RESERVED_FROM = 1 << 20
"""Bytes of state from which address space is reserved for its growth."""

_EXTENSION_BYTES = 4 << 20
"""Bytes by which reserved arrays are extended: few, since initial values are written and memory is waited for."""

_MOST_HUGE = 8
"""Arrays that have huge pages: those of more arrays would be cleared at about the same time."""

_IDENTITY_TYPES = tuple(np.dtype(kind) for kind in (np.uint64, np.uint64, np.int32, np.uint8))
_IDENTITY_BYTES = sum(dtype.itemsize for dtype in _IDENTITY_TYPES)


class SlotArrays:
    """One row per slot: the key's identity, its shard, a mark, and the values of its state.

    Parameters
    ----------
    fields : sequence of Field
        The fields of state.
    make_lock : callable, optional
        Makes the locks of ragged columns.
    shards : int, optional
        The number of shards.

    Attributes
    ----------
    hashes, checks : ndarray of uint64
        The keys' hashes and their second, independent hashes.
    shards : ndarray of int32
        The keys' shards.
    marks : ndarray of uint8
        `EMPTY`, `LIVE`, `TOMBSTONE` or `DIRTY`.
    values : list of ndarray or RaggedColumn
        The state, one column per field. An empty slot holds the initial values.
    used : int
        The number of allocated slots; the arrays are longer.
    make_lock : callable
        Makes locks.
    uncopied : ndarray of bool or None
        The slots whose state was not copied to another store since it changed; None if nothing is copied.
    """

    def __init__(self, fields: Sequence[Field], make_lock: MakeLock = NoLock, shards: int = 0) -> None:
        self.fields = tuple(fields)
        self.make_lock = make_lock
        self._shards = shards
        self._room: PreparedArrays | None = None
        self.used = 0
        self.uncopied: npt.NDArray[np.bool_] | None = None
        self._make_columns(_FIRST_CAPACITY)

    def _make_columns(self, capacity: int) -> None:
        self.hashes: Words = np.zeros(capacity, np.uint64)
        self.checks: Words = np.zeros(capacity, np.uint64)
        self.shards: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.marks: npt.NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self.values: list[Any] = [self._fresh(field, capacity) for field in self.fields]

    def windows(self, size: int | None = None, start: int = 0) -> Iterator[slice]:
        """Yield all used slots from one on in ranges, so that what is computed for each range needs little memory."""
        size = size or _WINDOW
        for first in range(start, self.used, size):
            yield slice(first, min(self.used, first + size))

    def portions(self, slots: Slots, nbytes: int = _PORTION_BYTES) -> list[Slots]:
        """Return slots in parts whose state has `nbytes` at most, or is that of one slot."""
        part = np.cumsum(self.list_bytes(slots) + self.slot_bytes()) // nbytes
        return [some for some in np.split(slots, np.flatnonzero(np.diff(part)) + 1) if len(some)]

    def _fresh(self, field: Field, capacity: int) -> Any:
        return RaggedColumn(field.dtype, capacity, self.make_lock) if field.ragged else field.fresh(capacity)

    @property
    def capacity(self) -> int:
        """The number of slots for which there is memory."""
        return len(self.marks)

    @property
    def _fixed_bytes(self) -> int:
        """The bytes of a slot in arrays."""
        return _IDENTITY_BYTES + sum(field.dtype.itemsize for field in self.fields)

    @property
    def allocated_bytes(self) -> int:
        """The bytes of the arrays, without lists and an index over the slots."""
        return self.capacity * self._fixed_bytes

    def bytes_to_grow(self, needed: int) -> int:
        """Return the bytes that are allocated for as many slots before any are freed."""
        more = self._extended(needed) - self.capacity if self.extends(needed) else self._doubled(needed)
        return more * self._fixed_bytes

    def extends(self, needed: int) -> bool:
        """Return whether room for as many slots can be made without copying any."""
        return self._room is not None and needed <= len(self._room.identity[0])

    def extend(self, needed: int) -> None:
        """Make room for `needed` slots where they are, if `extends` returns that this is possible.

        Sessions may go on meanwhile, except if the state is copied to another store: they have arrays that are shorter,
        but have the same memory.
        """
        room = self._room
        assert room is not None, "only reserved arrays are extended"
        before, capacity = self.capacity, self._extended(needed)
        for whole, field in zip(room.values, self.fields, strict=True):
            if not _is_zero(field):
                whole[before:capacity] = field.fresh(1)
        self._take(_first_part(room, capacity))

    def _extended(self, needed: int) -> int:
        assert self._room is not None, "only reserved arrays are extended"
        step = max(1, _EXTENSION_BYTES // self._fixed_bytes)
        return min(max(needed, self.capacity + step), len(self._room.identity[0]))

    def _doubled(self, needed: int) -> int:
        capacity = self.capacity
        while capacity < needed:
            capacity *= 2
        return capacity

    def prepared(self, needed: int, address_space: int = 0) -> PreparedArrays | None:
        """Return longer arrays for `grow`, without changing any: sessions go on while their memory is allocated.

        Parameters
        ----------
        needed : int
            The number of slots.
        address_space : int, optional
            Bytes that may be reserved, so that the arrays can be extended later.
        """
        capacity = self._doubled(needed)
        if room := self._reserved(capacity, address_space):
            return _first_part(room, capacity)
        # Not zeros, whose memory would be allocated when the slots are copied.
        identity = tuple(np.full(capacity, 0, dtype) for dtype in _IDENTITY_TYPES)
        return PreparedArrays(identity, [None if field.ragged else field.fresh(capacity) for field in self.fields])

    def _reserved(self, capacity: int, address_space: int) -> PreparedArrays | None:
        longest = address_space // self._fixed_bytes
        if capacity * self._fixed_bytes < _RESERVED_FROM or longest <= capacity or self._has_lists:
            return None
        dtypes = [*_IDENTITY_TYPES, *(field.dtype for field in self.fields)]
        huge = len(dtypes) <= _MOST_HUGE
        arrays = [array for dtype in dtypes if (array := reserved_array(dtype, longest, huge)) is not None]
        if len(arrays) < len(dtypes):
            return None
        count = len(_IDENTITY_TYPES)
        for whole, field in zip(arrays[count:], self.fields, strict=True):
            if not _is_zero(field):
                whole[:capacity] = field.fresh(1)
        return PreparedArrays(tuple(arrays[:count]), arrays[count:])

    def grow(self, needed: int, prepared: PreparedArrays | None = None) -> None:
        """Make room for `needed` slots; the capacity doubles, so copying stays proportional to the slots used.

        Parameters
        ----------
        needed : int
            The number of slots.
        prepared : PreparedArrays, optional
            What `prepared` has returned for as many; made here if left out.
        """
        # All arrays are made before any is replaced, so that running out of memory changes nothing.
        made = prepared or self.prepared(needed)
        assert made is not None, "slots in memory are copied to longer arrays"
        more, used = len(made.identity[0]) - self.capacity, self.used
        identity: tuple[npt.NDArray[Any], ...] = (self.hashes, self.checks, self.shards, self.marks)
        for old, new in zip(identity, made.identity, strict=True):
            new[:used] = old[:used]
        for column, fresh in zip(self.values, made.values, strict=True):
            if fresh is not None:
                fresh[:used] = column[:used]
        for column in self.values:
            if isinstance(column, RaggedColumn):
                column.grow(more)
        self._take(made)

    def _take(self, made: PreparedArrays) -> None:
        self.values = [old if new is None else new for old, new in zip(self.values, made.values, strict=True)]
        # The capacity is the number of marks, so these come last.
        self.hashes, self.checks, self.shards, self.marks = made.identity
        self._room = made.room
        self._grow_uncopied()

    def allocate(self, hashes: Words, checks: Words, shards: npt.NDArray[np.integer[Any]]) -> Slots:
        """Allocate slots for new keys; the capacity must suffice."""
        slots = np.arange(self.used, self.used + len(hashes))
        self.hashes[slots] = hashes
        self.checks[slots] = checks
        self.shards[slots] = shards
        self.used += len(hashes)
        return slots

    def write(self, slots: Slots, values: Sequence[Column | None], mark: Any) -> None:
        """Set values and marks of slots; fields given as None stay unchanged, `mark` is one mark or one per slot."""
        for column, new, field in zip(self.values, values, self.fields, strict=True):
            if new is None:
                continue
            if field.ragged:
                column.write(slots, new)
            else:
                column[slots] = new
        self.marks[slots] = mark

        self._note_change(slots)

    def set_marks(self, slots: Slots, marks: npt.NDArray[np.uint8]) -> None:
        """Set the marks of slots, whose values stay."""
        self.marks[slots] = marks

    def reset(self, slots: Slots, mark: int = EMPTY) -> None:
        """Set slots to their initial state."""
        for column, field in zip(self.values, self.fields, strict=True):
            if field.ragged:
                column.clear(slots)
            else:
                column[slots] = field.fresh(1)
        self.marks[slots] = mark
        self._note_change(slots)

    def adopt(self, other: SlotArrays, kept: Slots) -> None:
        """Append copies of some slots of another, with their marks; the capacity must suffice."""
        slots = self.allocate(other.hashes.take(kept), other.checks.take(kept), other.shards.take(kept))
        self.write(slots, [column.take(kept) for column in other.values], other.marks.take(kept))
        if self.uncopied is not None and other.uncopied is not None:
            self.uncopied[slots] = other.uncopied.take(kept)

    # copies of the state, see `OutgoingRows`

    def begin_copy(self) -> None:
        """Note all slots as not copied, and from now on those that change; the caller holds all gates."""
        uncopied = np.zeros(self.capacity, np.bool_)
        for window in self.windows():
            # Tombstones, too: the deletion is in no checkpoint yet.
            uncopied[window] = self.marks[window] != EMPTY
        self.uncopied = uncopied

    def kept(self, window: slice) -> Slots:
        """Return the slots of a range that packing keeps: those with a mark, and deleted ones to be copied."""
        slots: Slots = window.start + np.flatnonzero(self._is_kept(window))
        return slots

    def count_kept(self) -> int:
        """Return the number of slots that packing keeps."""
        return int(np.count_nonzero(self._is_kept(slice(0, self.used))))

    def _is_kept(self, window: slice) -> npt.NDArray[np.bool_]:
        kept: npt.NDArray[np.bool_] = self.marks[window] != EMPTY
        return kept if self.uncopied is None else kept | self.uncopied[window]

    def _note_change(self, slots: Slots) -> None:
        uncopied = self.uncopied
        if uncopied is not None:
            uncopied[slots] = True

    def _grow_uncopied(self) -> None:
        if self.uncopied is not None:
            more = np.zeros(self.capacity - len(self.uncopied), np.bool_)
            self.uncopied = np.concatenate([self.uncopied, more])

    def slot_bytes(self) -> float:
        """Return the mean bytes of one live slot without its lists; objects are measured on a sample."""
        fixed = _IDENTITY_BYTES + sum(16 if field.ragged else field.dtype.itemsize for field in self.fields)
        pairs = zip(self.values, self.fields, strict=True)
        objects = [column for column, field in pairs if field.is_object and not field.ragged]
        if not objects or self.used == 0:
            return float(fixed)
        live = np.flatnonzero(self.marks[: self.used])
        sample = live[:: max(1, len(live) // _SAMPLE)]
        pickled = sum(_size(value) for column in objects for value in column[sample])
        return fixed + pickled / max(1, len(sample))

    def counts(self, shards: int) -> tuple[Counts, Counts]:
        """Return, for each of `shards` shards, how many slots have changed since the last extract, and are live."""
        changed, live = np.zeros(shards, np.int64), np.zeros(shards, np.int64)
        for window in self.windows():
            marks, of = self.marks[window], self.shards[window]
            changed += np.bincount(of[(marks & TOMBSTONE) != 0], minlength=shards)
            live += np.bincount(of[(marks & LIVE) != 0], minlength=shards)
        return changed, live

    def chosen(self, in_full: npt.NDArray[np.bool_]) -> Iterator[tuple[slice, npt.NDArray[np.bool_]]]:
        """Yield which slots of each window a cut contains: live ones of shards in full, changed ones of the others."""
        for window in self.windows():
            marks = self.marks[window]
            if in_full.any():
                wanted = np.where(in_full.take(self.shards[window]), np.uint8(LIVE), np.uint8(TOMBSTONE))
                yield window, (marks & wanted) != 0
            else:
                yield window, (marks & TOMBSTONE) != 0

    def clear_changes(self) -> None:
        """Clear the marks of all changes; the caller holds all gates."""
        for window in self.windows():
            marks = self.marks[window]
            if (marks & TOMBSTONE).any():
                self.marks[window] = marks & LIVE

    def bytes_by_shard(self, shards: int, key_bytes: float) -> Counts:
        """Return the bytes of the live slots of each of `shards` shards, with `key_bytes` for the columns of a key."""
        keys, lists = np.zeros(shards, np.int64), np.zeros(shards)
        for window in self.windows():
            live = np.flatnonzero(self.marks[window] & LIVE)
            of = self.shards[window][live]
            keys += np.bincount(of, minlength=shards)
            if self._has_lists:
                lists += np.bincount(of, self.list_bytes(live + window.start), shards)
        return (keys * (self.slot_bytes() + key_bytes) + lists).astype(np.int64)

    @property
    def _has_lists(self) -> bool:
        return any(field.ragged or field.is_object for field in self.fields)

    def list_bytes(self, slots: Slots) -> npt.NDArray[np.float64]:
        """Return the bytes of each slot's lists; objects are measured on a sample."""
        total = np.zeros(len(slots))
        for column in self.values:
            if not isinstance(column, RaggedColumn):
                continue
            size = float(column.dtype.itemsize)
            if column.dtype == object and (sample := column.sample(_SAMPLE)):
                size += sum(_size(value) for value in sample) / len(sample)
            total += size * column.lengths(slots)
        return total


def _first_part(room: PreparedArrays, capacity: int) -> PreparedArrays:
    identity = tuple(whole[:capacity] for whole in room.identity)
    return PreparedArrays(identity, [whole[:capacity] for whole in room.values], room)


def _is_zero(field: Field) -> bool:
    """Return whether the initial value consists of zero bytes, as memory that was never written."""
    return not any(field.fresh(1).tobytes())


def _size(value: object) -> int:
    try:
        return len(cloudpickle.dumps(value))
    except Exception:  # pickling user objects may raise anything; a size estimate must not stop the job
        return sys.getsizeof(value)


def copied(column: Any, slots: Slots | slice) -> Column:
    """Return a copy of some slots of a column."""
    if not isinstance(slots, slice):
        return column.take(slots)
    if isinstance(column, RaggedColumn):
        return column.take(np.arange(slots.start, slots.stop))
    return column[slots].copy()
