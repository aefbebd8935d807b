"""The keyed state of one executor on one node, shared by all of its task threads there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.codec import StateRows, decode, encode
from dask_elastic.state.index import Slots, Words, make_index
from dask_elastic.state.key_columns import KeyColumns, plain
from dask_elastic.state.key_table import KeyTable, MakeIndex, distinct_keys
from dask_elastic.state.session import Session
from dask_elastic.state.slots import DIRTY, EMPTY, GONE, LIVE, Column, SlotArrays
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import SchemaMismatch, StateError
from dask_elastic.vocab.lock import MakeLock, NoLock

NO_OWNER = -1
_WORTH_PACKING = 4096


class KeyedStore:
    """Columnar state per key, cut into shards that each have one owner.

    Parameters
    ----------
    shards : int
        How many shards there are.
    shard_of : callable
        Gives the shards of an array of hashes.
    make_lock : callable, optional
        Makes a lock: `threading.Lock` where threads run.
    track_dirty : bool, optional
        Whether to remember which keys changed since they were last extracted.
    make_index : callable, optional
        Makes an index from hashes to slots.

    Attributes
    ----------
    owner : ndarray of intp
        Which task owns each shard, -1 for none; to be read only.
    owner_version : object
        Another one whenever `owner` has changed.
    track_dirty : bool
        Whether changes are marked.

    Examples
    --------
    >>> store = KeyedStore(4, lambda hashes: (hashes % 4).astype(int))
    >>> store.declare(pa.schema({"plane": pa.string()}), [Field("count", np.dtype(np.int64), 0)])
    >>> for shard in range(4):
    ...     store.grant(shard, 1)
    >>> session = store.session(1)
    >>> rows = pa.record_batch({"plane": ["a", "b", "a"]})
    >>> located = session.locate(rows, ["plane"], np.array([5, 6, 5], dtype=np.uint64))
    >>> _ = session.apply(located, lambda current: [current[0] + located.grouping.sizes])
    >>> keys, (counts,) = store.rows()
    >>> dict(zip(keys["plane"].to_pylist(), counts.tolist()))
    {'a': 2, 'b': 1}
    """

    def __init__(
        self,
        shards: int,
        shard_of: Callable[[Words], npt.NDArray[Any]],
        make_lock: MakeLock = NoLock,
        track_dirty: bool = False,
        make_index: MakeIndex = make_index,
    ) -> None:
        self._owner: npt.NDArray[np.intp] = np.full(shards, NO_OWNER, np.intp)
        self.owner: npt.NDArray[np.intp] = self._owner.view()
        self.owner.flags.writeable = False
        self.owner_version = object()
        self.track_dirty = track_dirty
        self.make_index = make_index
        self.reserve: Callable[[int], None] = _always
        # What follows is for sessions, which read it under their gates; it changes under the lock and all gates.
        self.layout = 0
        self.slots = SlotArrays((), make_lock)
        self.has_checks = False
        self._shard_of = shard_of
        self._make_lock = make_lock
        self._lock = make_lock()
        self._sessions: dict[int, Session] = {}
        self._table = KeyTable(make_index)
        self._keys: KeyColumns | None = None

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self.owner)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The declared fields; none before `declare`."""
        return self.slots.fields

    @property
    def key_schema(self) -> pa.Schema | None:
        """The declared key columns, dictionary types replaced by their values'; None before `declare`."""
        return None if self._keys is None else self._keys.schema

    def declare(self, key_schema: pa.Schema, fields: Sequence[Field]) -> None:
        """Say what keys and state look like; saying the same again does nothing.

        Raises
        ------
        SchemaMismatch
            If something else was declared before; the message names the difference.
        """
        with self._lock:
            self._declare(plain(key_schema), tuple(fields))

    def _declare(self, key_schema: pa.Schema, fields: tuple[Field, ...]) -> None:
        if self._keys is not None:
            difference = _difference(self._keys.schema, key_schema, self.fields, fields)
            if difference:
                raise SchemaMismatch(
                    f"the state is declared already, and differently: {difference}. State of another shape needs an "
                    "operator of another name"
                )
            return
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise SchemaMismatch(f"state fields need different names, not {names!r}")
        with self._all_gates():
            self.slots = SlotArrays(fields, self._make_lock)
            self._keys = KeyColumns(key_schema)

    def session(self, name: int) -> Session:
        """Open a session for a task; one that the name had before is closed.

        Parameters
        ----------
        name : int
            The task's number, as used in `grant`.
        """
        session = Session(self, name, self._make_lock())
        with self._lock:
            before = self._sessions.get(name)
            if before is not None:
                with before.gate:
                    before.closed = True
            self._sessions[name] = session
        return session

    def close_session(self, session: Session) -> None:
        """Close a session; see `Session.close`."""
        with self._lock:
            with session.gate:
                session.closed = True
            if self._sessions.get(session.name) is session:
                del self._sessions[session.name]

    def grant(self, shard: int, name: int) -> None:
        """Give a shard to a task.

        Raises
        ------
        StateError
            If another task has it.
        """
        self._require_shards([shard])
        if self.owner[shard] not in (NO_OWNER, name):
            raise StateError(
                f"shard {shard} is owned by task {self.owner[shard]}; revoke it before task {name} gets it"
            )
        self._set_owner(shard, name)

    def revoke(self, shard: int) -> None:
        """Take a shard from whoever has it."""
        self._require_shards([shard])
        self._set_owner(shard, NO_OWNER)

    def _set_owner(self, shard: int, name: int) -> None:
        # In this order: a session that sees the new version sees the new owner. A count could be raised by two at once.
        self._owner[shard] = name
        self.owner_version = object()

    def not_owned(self, shard: int, asker: int) -> StateError:
        """Return the error for a task that touches a shard that is not its own."""
        owner = int(self.owner[shard])
        whose = "no task" if owner == NO_OWNER else f"task {owner}"
        return StateError(f"task {asker} touched shard {shard}, which {whose} owns; route its rows to the owner")

    def admit(
        self,
        asker: int,
        rows: pa.RecordBatch,
        key_columns: Sequence[str],
        picked: Slots,
        hashes: Words,
        check: Words | None,
    ) -> tuple[int, Slots]:
        """Return the layout, and the slots of the distinct keys in the picked rows; new keys get new slots."""
        hashes = hashes[picked]
        checks = np.zeros_like(hashes) if check is None else check[picked]
        with self._lock:
            keys = self._require_declared()

            def keys_of(new: Slots) -> pa.RecordBatch:
                return keys.fit(rows.take(pa.array(picked[new])), key_columns)

            return self.layout, self._find_or_add(hashes, checks, keys_of, asker)

    def _find_or_add(
        self, hashes: Words, checks: Words, keys_of: Callable[[Slots], pa.RecordBatch], asker: int | None
    ) -> Slots:
        slots = self._table.find(hashes, checks, self.slots, verify=True)
        new = np.flatnonzero(slots < 0)
        if len(new):
            slots[new] = self._add(hashes[new], checks[new], keys_of(new), asker)
        return slots

    def _add(self, hashes: Words, checks: Words, keys: pa.RecordBatch, asker: int | None) -> Slots:
        shards = np.asarray(self._shard_of(hashes))
        if asker is not None:
            strange = self.owner[shards] != asker
            if strange.any():
                raise self.not_owned(int(shards[strange.argmax()]), asker)
        needed = self.slots.used + len(hashes)
        if needed > self.slots.capacity:
            self.reserve(self.slots.bytes_to_grow(needed))
            with self._all_gates():
                self.slots.grow(needed)
        self.has_checks = self.has_checks or bool(checks.any())
        self._require_declared().append(keys)
        slots = self.slots.give_out(hashes, checks, shards)
        self._table.add(hashes, checks, slots)
        return slots

    def extract(
        self, shards: Iterable[int] | None = None, dirty_only: bool = False, clear: bool | None = None
    ) -> pa.RecordBatch | None:
        """Return a copy of the state of shards that `install` takes.

        Parameters
        ----------
        shards : iterable of int, optional
            Which shards; all by default.
        dirty_only : bool, optional
            Only keys that changed since they were last extracted and cleared.
        clear : bool, optional
            Whether to clear the marks of what is extracted; by default if `dirty_only`.

        Returns
        -------
        RecordBatch or None
            Identities, key columns and fields, see `codec.encode`; None if nothing is declared yet.
        """
        with self._lock:
            if self._keys is None:
                return None
            state = self._copy(shards, dirty_only, dirty_only if clear is None else clear)
        return encode(state)

    def rows(self, shards: Iterable[int] | None = None) -> tuple[pa.RecordBatch, list[Column]]:
        """Return a consistent copy of the keys and their values, one array a field, a `Ragged` of a ragged one.

        Raises
        ------
        StateError
            If nothing is declared yet.
        """
        with self._lock:
            self._require_declared()
            state = self._copy(shards, dirty_only=False, clear=False)
        return state.keys, list(state.values)

    def _copy(self, shards: Iterable[int] | None, dirty_only: bool, clear: bool) -> StateRows:
        candidates = self._of_shards(shards)
        with self._all_gates():
            marks = self.slots.marks.take(candidates)
            # Those that are gone have to be told of where the others are only what changed; a whole copy lacks them.
            chosen = candidates[(marks & (GONE if dirty_only else LIVE)) != 0]
            values = [column.take(chosen) for column in self.slots.values]
            gone = self.slots.marks.take(chosen) == GONE
            if clear:
                self.slots.marks[candidates] = marks & LIVE
        arrays = self.slots
        identity = arrays.hashes.take(chosen), arrays.checks.take(chosen), arrays.shards.take(chosen)
        return StateRows(*identity, self._require_declared().take(chosen), arrays.fields, values, gone)

    def install(self, batch: pa.RecordBatch, dirty: bool = False) -> None:
        """Take over state that `extract` gave; keys that are there already are overwritten.

        Parameters
        ----------
        batch : RecordBatch
            The state. It declares the store, if nothing has yet.
        dirty : bool, optional
            Whether the keys count as changed here.

        Notes
        -----
        The keys' shards must be at rest: owned by nobody, or by the caller.
        """
        state = decode(batch)
        with self._lock:
            if not self._declared_as(state.keys.schema, state.fields):
                self._declare(plain(state.keys.schema), state.fields)
            slots = self._table.find(state.hashes, state.checks, self.slots, verify=True)
            # A shard that returns brings keys that are known here: only others need to be told apart.
            if (slots < 0).any():
                slots = self._slots_of(state)
            self.slots.write(slots, state.values, DIRTY if dirty else LIVE)
            if state.gone.any():
                self.slots.reset(slots[state.gone], GONE if dirty else EMPTY)

    def _slots_of(self, state: StateRows) -> Slots:
        """Return the slot of each row; keys that are not here yet get new ones."""
        first, ordinals = distinct_keys(state.hashes, state.checks)
        keys = self._require_declared().fit(state.keys, state.keys.schema.names)
        slots = self._find_or_add(
            state.hashes[first], state.checks[first], lambda new: keys.take(pa.array(first[new])), asker=None
        )
        return slots[ordinals]

    def _declared_as(self, key_schema: pa.Schema, fields: tuple[Field, ...]) -> bool:
        return self._keys is not None and self.fields == fields and self._keys.schema.equals(key_schema)

    def drop(self, shards: Iterable[int]) -> None:
        """Forget the state of shards, which must be at rest; their keys start anew if they come again."""
        with self._lock:
            dropped = self._of_shards(shards)
            self.slots.reset(dropped)
            self._pack_if_worth_it()

    def tidy(self) -> None:
        """Give the room of keys that have no state any more back, if there are many."""
        with self._lock:
            self._pack_if_worth_it()

    def _pack_if_worth_it(self) -> None:
        kept = int(np.count_nonzero(self.slots.marks[: self.slots.used]))
        if self.slots.used > max(2 * kept, _WORTH_PACKING):
            self._pack()

    def _pack(self) -> None:
        with self._all_gates():
            kept = np.flatnonzero(self.slots.marks[: self.slots.used])
            keys = KeyColumns(self._require_declared().schema)
            keys.append(self._require_declared().take(kept))
            self.slots.pack(kept)
            self._keys = keys
            self._table = KeyTable(self.make_index)
            used = self.slots.used
            self._table.add(self.slots.hashes[:used], self.slots.checks[:used], np.arange(used))
            self.layout += 1

    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """Return the memory that each shard's live keys take, roughly; objects are measured on a sample."""
        with self._lock:
            used = self.slots.used
            if used == 0 or self._keys is None:
                return np.zeros(self.shards, np.int64)
            live = np.flatnonzero(self.slots.marks[:used] & LIVE)
            shards = self.slots.shards.take(live)
            keys = np.bincount(shards, minlength=self.shards)
            with self._all_gates():
                per_slot = self.slots.slot_bytes()
                lists = np.bincount(shards, self.slots.list_bytes(live), self.shards)
            return (keys * (per_slot + self._keys.nbytes / used) + lists).astype(np.int64)

    def state_bytes(self, shards: Iterable[int] | None = None) -> int:
        """Return the memory that the live keys of shards, or of all, take, roughly."""
        sizes = self.shard_bytes()
        return int(sizes.sum() if shards is None else sizes[self._require_shards(shards)].sum())

    def __len__(self) -> int:
        with self._lock:
            return int(np.count_nonzero(self.slots.marks[: self.slots.used] & LIVE))

    def _of_shards(self, shards: Iterable[int] | None) -> Slots:
        """Return the slots of shards, live or not."""
        used = self.slots.used
        if shards is None:
            return np.arange(used)
        chosen = self._require_shards(shards)
        if len(chosen) == 1:
            return np.flatnonzero(self.slots.shards[:used] == chosen[0])
        wanted = np.zeros(self.shards, np.bool_)
        wanted[chosen] = True
        return np.flatnonzero(wanted.take(self.slots.shards[:used]))

    def _require_shards(self, shards: Iterable[int]) -> list[int]:
        chosen = [int(shard) for shard in shards]
        for shard in chosen:
            if not 0 <= shard < self.shards:
                raise StateError(f"there is no shard {shard}: the store has the shards 0 to {self.shards - 1}")
        return chosen

    def _require_declared(self) -> KeyColumns:
        if self._keys is None:
            raise StateError("the store has no keys and fields yet; call declare, or install state, before using it")
        return self._keys

    @contextmanager
    def _all_gates(self) -> Iterator[None]:
        """Hold every session's gate, so that nobody touches the arrays; the caller holds the store's lock."""
        with ExitStack() as held:
            for name in sorted(self._sessions):
                gate = self._sessions[name].gate
                gate.__enter__()
                held.callback(gate.__exit__, None, None, None)
            yield


def _always(nbytes: int) -> None:
    """Let the state grow as far as it wants to."""


def _difference(
    keys: pa.Schema, other_keys: pa.Schema, fields: tuple[Field, ...], other_fields: tuple[Field, ...]
) -> str:
    if fields == other_fields and keys.equals(other_keys):
        return ""
    parts = []
    if not keys.equals(other_keys):
        parts.append(f"key columns {_text(keys)} against {_text(other_keys)}")
    missing = [repr(field) for field in fields if field not in other_fields]
    added = [repr(field) for field in other_fields if field not in fields]
    if missing:
        parts.append(f"fields that are no longer there: {', '.join(missing)}")
    if added:
        parts.append(f"new fields: {', '.join(added)}")
    if not parts and fields != other_fields:
        parts.append("the same fields in another order")
    return "; ".join(parts)


def _text(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{field.name}: {field.type}" for field in schema) + ")"
