"""The keyed state of one executor on one node, shared by the executor's task threads there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.codec import EncodedRows, StateRows, decode, encode
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.key_columns import plain
from dask_elastic.state.key_table import distinct_keys
from dask_elastic.state.session import Session
from dask_elastic.state.slots import DIRTY, EMPTY, LIVE, TOMBSTONE, Column, Counts, copied
from dask_elastic.state.stored_keys import StoredKeys
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import StateDiskError

logger = logging.getLogger("dask_elastic.node")

_WORTH_PACKING = 4096
_REMOVED_AT_ONCE = 1 << 13
"""Slots that are emptied while tasks wait."""


class KeyedStore(StoredKeys):
    """Columnar state per key, in shards that each have one owner.

    Parameters
    ----------
    shards : int
        The number of shards.
    shard_of : callable
        Maps an array of hashes to shards.
    make_lock : callable, optional
        Makes a lock; `threading.Lock` if several threads use the store.
    track_dirty : bool, optional
        Whether to mark the keys that changed since they were last extracted.
    make_index : callable, optional
        Makes an index from hashes to slots.

    Attributes
    ----------
    track_dirty : bool
        Whether changes are marked.
    reserve : callable
        Called with a number of bytes before the store allocates them; it may raise to refuse.
    overflow : callable
        Called with the same number before: returns the storage to which the state moves instead, or None.
    address_space : int
        Bytes of address space that the arrays of state may reserve, so that they grow without being copied; 0 for none.
    storage : Storage
        Where the state is now.

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

    def admit(
        self,
        task: int,
        rows: pa.RecordBatch,
        key_columns: Sequence[str],
        picked: Slots,
        hashes: Words,
        check: Words | None,
    ) -> tuple[int, Slots]:
        """Return the layout's number and the slots of the keys in the picked rows; new keys get new slots.

        Parameters
        ----------
        task : int
            The task, which must own the shards of new keys.
        rows : RecordBatch
            A batch.
        key_columns : sequence of str
            Its key columns.
        picked : ndarray of intp
            One row of each distinct key.
        hashes, check : ndarray of uint64
            The hashes and checks of all rows; no checks if all are zero.

        Returns
        -------
        layout : int
            The layout for which the slots are valid; packing starts a new one.
        slots : ndarray of intp
            One slot per picked row.

        Raises
        ------
        StateError
            If another task, or none, owns a new key's shard, or nothing is declared yet.
        """
        hashes = hashes[picked]
        checks = np.zeros_like(hashes) if check is None else check[picked]
        with self._lock:
            keys = self._require_declared()

            def keys_of(new: Slots) -> pa.RecordBatch:
                return keys.fit(rows.take(array_of(picked[new])), key_columns)

            slots = self._find_or_add(hashes, checks, keys_of, task)
            # Adding keys may move the state, which starts a new layout.
            return self.layout, slots

    def find(self, hashes: Words, checks: Words) -> tuple[int, Slots]:
        """Return the layout's number and the slot of each key, -1 for keys without one.

        Parameters
        ----------
        hashes, checks : ndarray of uint64
            Both hashes of each key.

        Returns
        -------
        layout : int
            The layout for which the slots are valid.
        slots : ndarray of intp
            One per key.
        """
        with self._lock:
            return self.layout, self._table.find(hashes, checks, self.slots, verify=True)

    def keys_at(self, slots: Slots, layout: int) -> pa.RecordBatch | None:
        """Return the key columns of slots; None if the store was packed since that layout."""
        with self._lock:
            return self._require_declared().take(slots) if layout == self.layout else None

    def session(self, task: int) -> Session:
        """Open a session for a task; the task's previous session is closed.

        Parameters
        ----------
        task : int
            The task's number, as in `grant`.

        Returns
        -------
        Session
            The task's access to the store.
        """
        return self._sessions.open(self, task, self._lock)

    def close_session(self, session: Session) -> None:
        """Close a session; see `Session.close`."""
        with self._lock:
            self._sessions.close(session)

    def extract(
        self, shards: Iterable[int] | None = None, dirty_only: bool = False, clear: bool | None = None
    ) -> pa.RecordBatch | None:
        """Return an encoded copy of the state of shards, for `install`.

        Parameters
        ----------
        shards : iterable of int, optional
            The shards; all by default.
        dirty_only : bool, optional
            Whether to extract a delta: only keys that changed since their marks were last cleared.
        clear : bool, optional
            Whether to clear the marks of the extracted keys; by default the value of `dirty_only`.

        Returns
        -------
        RecordBatch or None
            Identities, key columns and fields, see `codec.encode`; None if nothing is declared yet.

        Raises
        ------
        StateError
            If there is no such shard.
        """
        with self._lock:
            if self._keys is None:
                return None
            state = self._copy(shards, dirty_only, dirty_only if clear is None else clear)
        return encode(state)

    def portions_of(self, shard: int, nbytes: int) -> Iterator[pa.RecordBatch]:
        """Take the state of a shard out in portions: yield each encoded, after deleting it.

        Deleted state leaves tombstones if changes are marked. No task may access the shard meanwhile; those of other
        shards go on, since nothing is locked between two portions.

        Parameters
        ----------
        shard : int
            The shard.
        nbytes : int
            The size of a portion, at most, if it has more than one key.

        Yields
        ------
        RecordBatch
            As `extract` returns it.
        """
        start, layout, chosen = 0, self.layout, np.arange(self.shards) == shard
        while True:
            with self._lock:
                if layout != self.layout:
                    # The slots have other numbers.
                    start, layout = 0, self.layout
                slots = self._next_of(chosen, start)
                if not len(slots):
                    return
                portion = self.slots.portions(slots, nbytes)[0]
                state = self.rows_of(portion, np.zeros(len(portion), np.bool_))
                self.slots.reset(portion, TOMBSTONE if self.track_dirty else EMPTY)
                start = int(portion[-1]) + 1
            yield encode(state)

    def _next_of(self, shards: npt.NDArray[np.bool_], start: int) -> Slots:
        """Return some slots of shards that have state, the first ones from a slot on; none if there are none."""
        for window in self.slots.windows(start=start):
            marks = self.slots.marks[window]
            found: Slots = window.start + np.flatnonzero(shards.take(self.slots.shards[window]) & ((marks & LIVE) != 0))
            if len(found):
                return found
        return np.empty(0, np.intp)

    def remove(self, shards: Iterable[int]) -> None:
        """Delete the state of shards, with tombstones if changes are marked; no task may access the shards meanwhile.

        Parameters
        ----------
        shards : iterable of int
            The shards.
        """
        chosen = np.zeros(self.shards, np.bool_)
        chosen[list(self.require_shards(shards))] = True
        start, layout = 0, self.layout
        while True:
            with self._lock:
                if layout != self.layout:
                    # The slots have other numbers.
                    start, layout = 0, self.layout
                slots = self._next_of(chosen, start)[:_REMOVED_AT_ONCE]
                if not len(slots):
                    return
                with self._all_gates():
                    self.slots.reset(slots, TOMBSTONE if self.track_dirty else EMPTY)
                start = int(slots[-1]) + 1

    def rows(self, shards: Iterable[int] | None = None) -> tuple[pa.RecordBatch, list[Column]]:
        """Return a consistent copy of the keys and their values, one array (or `Ragged`) per field.

        Parameters
        ----------
        shards : iterable of int, optional
            The shards; all by default.

        Returns
        -------
        keys : RecordBatch
            The key columns.
        values : list of ndarray or Ragged
            The values, one array per field.

        Raises
        ------
        StateError
            If nothing is declared yet.
        """
        with self._lock:
            self._require_declared()
            state = self._copy(shards, dirty_only=False, clear=False)
        return state.keys, list(state.values)

    def cut(self, choose: Callable[[Counts, Counts], Collection[int]]) -> Sequence[StateRows | EncodedRows] | None:
        """Copy the state of some shards in full, and of the others what has changed; clears all marks.

        Parameters
        ----------
        choose : callable
            Gets the number of changed and of live keys of each shard, and returns the shards to copy in full.

        Returns
        -------
        sequence of (StateRows or EncodedRows) or None
            The copy, with tombstones in what has changed; None if nothing is declared yet. State on disk is copied
            while the rows are read, as it is now.

        Raises
        ------
        StateDiskError
            If there is no space for what keeps rows that change before they are copied. No mark is cleared then.
        """
        with self._lock:
            if self._keys is None:
                return None
            in_full = np.zeros(self.shards, np.bool_)
            in_full[list(choose(*self.slots.counts(self.shards)))] = True
            with self._all_gates():
                parts = self.storage.cut(self, in_full)
                self.slots.clear_changes()
            return parts

    def held(self) -> AbstractContextManager[object]:
        """Hold the store's lock, so that its arrays are not replaced."""
        lock: AbstractContextManager[object] = self._lock  # type: ignore[assignment]
        return lock

    def rows_of(self, slots: Slots | slice, deleted: npt.NDArray[np.bool_]) -> StateRows:
        """Return a copy of the state of slots, which no other thread changes; the caller holds the lock."""
        arrays = self.slots
        identity = copied(arrays.hashes, slots), copied(arrays.checks, slots), copied(arrays.shards, slots)
        values = [copied(column, slots) for column in arrays.values]
        return StateRows(*identity, self._require_declared().take(slots), arrays.fields, values, deleted)

    def keys_of(self, slots: Slots) -> pa.RecordBatch:
        """Return the key columns of slots."""
        with self._lock:
            return self._require_declared().take(slots)

    def _copy(self, shards: Iterable[int] | None, dirty_only: bool, clear: bool) -> StateRows:
        candidates = self._of_shards(shards)
        with self._all_gates():
            marks = self.slots.marks.take(candidates)
            # A delta carries tombstones for deleted keys; a full copy omits them.
            chosen = (marks & (TOMBSTONE if dirty_only else LIVE)) != 0
            rows = self.rows_of(candidates[chosen], marks[chosen] == TOMBSTONE)
            if clear:
                self.slots.set_marks(candidates, marks & np.uint8(LIVE))
        return rows

    def install(self, batch: pa.RecordBatch, dirty: bool = False) -> None:
        """Install state that `extract` returned; it overwrites keys that exist.

        Parameters
        ----------
        batch : RecordBatch
            The state. It declares the store if nothing did before.
        dirty : bool, optional
            Whether to mark the keys as changed.

        Raises
        ------
        SchemaMismatch
            If the batch is not encoded state, or its key columns or fields differ from the declared ones.

        Notes
        -----
        No other task may access the keys' shards meanwhile: they have no owner, or the caller is their owner.
        """
        state = decode(batch)
        with self._lock:
            if not self._declared_as(state.keys.schema, state.fields):
                self._declare(plain(state.keys.schema), state.fields)
            slots = self._table.find(state.hashes, state.checks, self.slots, verify=True)
            # The keys of a shard that returns already have slots; only new keys have to be deduplicated.
            if (slots < 0).any():
                slots = self._slots_of(state)
            self.slots.write(slots, state.values, DIRTY if dirty else LIVE)
            if state.deleted.any():
                self.slots.reset(slots[state.deleted], TOMBSTONE if dirty else EMPTY)
                # The primary copy may have no task at home that tidies it.
                self._pack_if_worth_it()

    def _slots_of(self, state: StateRows) -> Slots:
        """Return the slot of each row; new keys get new slots."""
        first, ordinals = distinct_keys(state.hashes, state.checks)
        keys = self._require_declared().fit(state.keys, state.keys.schema.names)
        slots = self._find_or_add(
            state.hashes[first], state.checks[first], lambda new: keys.take(array_of(first[new])), task=None
        )
        return slots[ordinals]

    def _declared_as(self, key_schema: pa.Schema, fields: tuple[Field, ...]) -> bool:
        return self._keys is not None and self.fields == fields and self._keys.schema.equals(key_schema)

    def drop(self, shards: Iterable[int]) -> None:
        """Delete the state of shards, without tombstones; no task may access these shards meanwhile.

        Parameters
        ----------
        shards : iterable of int
            The shards.
        """
        with self._lock:
            slots = self._of_shards(shards)
            # The keys of a shard that has left keep their slots until these are packed.
            self.slots.reset(slots[self.slots.marks.take(slots) != EMPTY])
            self._pack_if_worth_it()

    def tidy(self) -> None:
        """Free the slots of keys without state, if there are many."""
        with self._lock:
            self._pack_if_worth_it()

    def _pack_if_worth_it(self) -> None:
        if self.storage.is_copied(self.slots):
            return
        kept = self.slots.count_kept()
        if self.slots.used <= max(2 * kept, _WORTH_PACKING, self._unpacked):
            return
        try:
            self._pack()
        except StateDiskError as error:
            # Both copies do not fit on the disk. The slots stay, and are tried again when there are many more.
            self._unpacked = 2 * self.slots.used
            logger.warning("slots of deleted keys are not freed: %s", error)

    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """Return the approximate bytes of each shard's live keys; objects are measured on a sample."""
        with self._lock:
            if self.slots.used == 0 or self._keys is None:
                return np.zeros(self.shards, np.int64)
            with self._all_gates():
                return self.slots.bytes_by_shard(self.shards, self._keys.nbytes / self.slots.used)

    def state_bytes(self) -> int:
        """Return the approximate bytes of all live keys, without those of computes that are fused behind."""
        return int(KeyedStore.shard_bytes(self).sum())

    def __len__(self) -> int:
        with self._lock:
            return int(np.count_nonzero(self.slots.marks[: self.slots.used] & LIVE))

    def _of_shards(self, shards: Iterable[int] | None) -> Slots:
        """Return all slots of shards, with state or without."""
        used = self.slots.used
        if shards is None:
            return np.arange(used)
        chosen = self.require_shards(shards)
        if len(chosen) == 1:
            return np.flatnonzero(self.slots.shards[:used] == chosen[0])
        wanted = np.zeros(self.shards, np.bool_)
        wanted[chosen] = True
        return np.flatnonzero(wanted.take(self.slots.shards[:used]))
