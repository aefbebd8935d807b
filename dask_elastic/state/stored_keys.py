"""The keys of a store: their slots, the sessions of the tasks that access them, and where all of it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.declaration import difference
from dask_elastic.state.index import Slots, Words, make_index
from dask_elastic.state.key_columns import KeyColumns, plain
from dask_elastic.state.key_table import MakeIndex
from dask_elastic.state.open_sessions import OpenSessions
from dask_elastic.state.shard_owners import ShardOwners
from dask_elastic.state.slots import SlotArrays
from dask_elastic.state.storage import Storage
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import SchemaMismatch, StateError
from dask_elastic.vocab.lock import MakeLock, NoLock
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.window_costs import WindowTally

_MOVED_AT_ONCE = 1 << 12
"""Slots whose objects are pickled at a time."""


class StoredKeys(ShardOwners):
    """The declared keys and fields, a slot for each key, and the sessions; see `KeyedStore`.

    Parameters
    ----------
    shards, shard_of, make_lock, track_dirty, make_index
        As for `KeyedStore`.
    """

    address_space: int = 0

    def __init__(
        self,
        shards: int,
        shard_of: Callable[[Words], npt.NDArray[Any]],
        make_lock: MakeLock = NoLock,
        track_dirty: bool = False,
        make_index: MakeIndex = make_index,
    ) -> None:
        super().__init__(shards)
        self.track_dirty = track_dirty
        self.make_index = make_index
        self.reserve: Callable[[int], None] = _unlimited
        self.overflow: Callable[[int], Storage | None] = _stays
        self.storage = Storage(make_index)
        # Sessions read the next three attributes under their gates; they change under the lock and all gates.
        self.layout = 0
        self.slots = self.storage.slots((), make_lock, shards)
        self.has_checks = False
        # Of each task, what became of the rows that it has processed; only the task's thread changes its own.
        self.row_counts: dict[int, RowCounts] = {}
        # The same for what its partial results of windows have cost.
        self.window_costs: dict[int, WindowTally] = {}
        # Of each task, microseconds of processor time, if several computes have to be told apart.
        self.microseconds: dict[int, int] = {}
        self._shard_of = shard_of
        self._make_lock = make_lock
        self._lock = make_lock()
        self._sessions = OpenSessions(make_lock)
        self._table = self.storage.table()
        self._keys: KeyColumns | None = None
        self._unpacked = 0
        # The newest copy of the state, see `OutgoingRows`.
        self.outgoing: object | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The declared fields; empty before `declare`."""
        return self.slots.fields

    @property
    def key_schema(self) -> pa.Schema | None:
        """The declared key columns, dictionary types replaced by their value types; None before `declare`."""
        return None if self._keys is None else self._keys.schema

    def declare(self, key_schema: pa.Schema, fields: Sequence[Field]) -> None:
        """Declare the key columns and the fields of the state; repeating the same declaration does nothing.

        Parameters
        ----------
        key_schema : Schema
            The key columns.
        fields : sequence of Field
            The fields of the state.

        Raises
        ------
        SchemaMismatch
            If the store was declared differently before; the message names the difference.
        """
        with self._lock:
            self._declare(plain(key_schema), tuple(fields))

    def _declare(self, key_schema: pa.Schema, fields: tuple[Field, ...]) -> None:
        if self._keys is not None:
            changed = difference(self._keys.schema, key_schema, self.fields, fields)
            if changed:
                raise SchemaMismatch(
                    f"the state is already declared with a different shape: {changed}. Give an operator whose state "
                    "has another shape another name"
                )
            return
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise SchemaMismatch(f"state fields need distinct names, not {names!r}")
        with self._all_gates():
            copied = self.slots.uncopied is not None
            self.slots = self.storage.slots(fields, self._make_lock, self.shards)
            if copied:
                self.slots.begin_copy()
            self._keys = self.storage.keys(key_schema)

    def _find_or_add(
        self, hashes: Words, checks: Words, keys_of: Callable[[Slots], pa.RecordBatch], task: int | None
    ) -> Slots:
        layout = None
        while layout != self.layout:
            layout = self.layout
            slots = self._table.find(hashes, checks, self.slots, verify=True)
            new = np.flatnonzero(slots < 0)
            if len(new):
                self._make_room(self.slots.used + len(new))
        if len(new):
            slots[new] = self._add(hashes[new], checks[new], keys_of(new), task)
        return slots

    def _add(self, hashes: Words, checks: Words, keys: pa.RecordBatch, task: int | None) -> Slots:
        shards = np.asarray(self._shard_of(hashes))
        if task is not None:
            foreign = self.owner[shards] != task
            if foreign.any():
                raise self.not_owned(int(shards[foreign.argmax()]), task)
        self.has_checks = self.has_checks or bool(checks.any())
        self._require_declared().append(keys)
        slots = self.slots.allocate(hashes, checks, shards)
        self._table.add(hashes, checks, slots)
        return slots

    @property
    def allocated_bytes(self) -> int:
        """The bytes of the slots and of the index over them, without lists; read without a lock."""
        return self.slots.allocated_bytes + self._table.nbytes

    def _make_room(self, needed: int) -> None:
        if needed <= self.slots.capacity:
            return
        if not self.storage.on_disk:
            # The index grows with its keys, though in other steps.
            of_index = self._table.nbytes * (needed - self.slots.used) // self.slots.capacity
            nbytes = self.slots.bytes_to_grow(needed) + of_index
            storage = self.overflow(nbytes)
            if storage is None:
                self.reserve(nbytes)
            else:
                self._move(storage)
        if self.slots.extends(needed):
            # A copy of the state notes changes in an array that is replaced.
            with nullcontext() if self.slots.uncopied is None else self._all_gates():
                self.slots.extend(needed)
            return
        # Tasks wait only while slots are copied: allocating the memory takes several times as long.
        prepared = self.slots.prepared(needed, self.address_space)
        with self._all_gates():
            self.slots.grow(needed, prepared)

    def _pack(self) -> None:
        self._move(self.storage)

    def move(self, storage: Storage) -> None:
        """Move the state to another storage; tasks wait meanwhile.

        Parameters
        ----------
        storage : Storage
            The storage.

        Raises
        ------
        StateDiskError
            If the disk is full; the state stays where it was.
        """
        with self._lock:
            # It may have moved by itself while this call waited for the lock.
            if storage is not self.storage:
                self._move(storage)

    def _move(self, storage: Storage) -> None:
        """Copy all slots that are not empty; starts a new layout."""
        with self._all_gates():
            before, keys_before = self.slots, self._keys
            slots, table = storage.slots(before.fields, self._make_lock, self.shards), storage.table()
            if before.uncopied is not None:
                slots.begin_copy()
            if keys_before is None:
                # Not declared yet, so that there are no keys.
                self.slots, self._table, self.storage = slots, table, storage
                return
            keys = storage.keys(keys_before.schema)
            for window in before.windows(_MOVED_AT_ONCE):
                kept = before.kept(window)
                first = slots.used
                self._grow_alone(slots, first + len(kept))
                slots.adopt(before, kept)
                keys.append(keys_before.take(kept))
                new = np.arange(first, slots.used)
                table.add(slots.hashes.take(new), slots.checks.take(new), new)
            self.slots, self._keys, self._table, self.storage = slots, keys, table, storage
            self.layout += 1

    def _grow_alone(self, slots: SlotArrays, needed: int) -> None:
        """Make room in slots that no session has."""
        if needed <= slots.capacity:
            return
        if slots.extends(needed):
            slots.extend(needed)
        else:
            slots.grow(needed, slots.prepared(needed, self.address_space))

    def _require_declared(self) -> KeyColumns:
        if self._keys is None:
            raise StateError("the store has no declared keys and fields; call declare or install before using it")
        return self._keys

    @contextmanager
    def still(self) -> Iterator[None]:
        """Hold the store's lock and all gates, so that nothing changes."""
        with self._lock, self._all_gates():
            yield

    def _all_gates(self) -> AbstractContextManager[None]:
        """Hold every session's gate, so that no session accesses the arrays; the caller holds the store's lock."""
        return self._sessions.all_gates()


def _unlimited(nbytes: int) -> None:
    """Let the state grow without a limit."""


def _stays(nbytes: int) -> None:
    """Let the state stay where it is."""
