"""A task's access to the keyed state: it locates the slots of a batch's keys, reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.expiry.times import ExpiryTimes, RemainingOf, Shards
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.key_table import distinct_keys, few_grouped, key_cache, sorted_groups
from dask_elastic.state.shared_store import SharedStore
from dask_elastic.state.slot_search import SlotSearch
from dask_elastic.state.slots import DIRTY, EMPTY, LIVE, TOMBSTONE, Column, SlotArrays
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.vocab.batch import FEW_ROWS
from dask_elastic.vocab.errors import StateError
from dask_elastic.vocab.lock import Lock

Batch = tuple[pa.RecordBatch, Sequence[str], Words, Words | None]
"""Rows, names of the key columns, hashes, and checks (second hashes; None if all are zero)."""
Again = Callable[[], tuple[int, Slots]]
"""Finds the slots of located keys again, and returns the number of their layout."""
Update = Callable[[list[Column]], list[Column]]

MANY_ROWS = 4_096
"""From this many rows on, the rows of each slot are counted if there are fewer slots than rows: in fewer passes."""


class Located:
    """The slots of one batch's keys.

    Attributes
    ----------
    slots : ndarray of intp
        The slot of each distinct key.
    grouping : Grouping
        The rows by key; group i is the key of `slots[i]`.
    layout : int
        The number of the store's layout for which the slots are valid.
    """

    __slots__ = ("_batch", "_first", "grouping", "layout", "slots")

    def __init__(
        self, slots: Slots, grouping: Grouping, first: Slots | None, batch: Batch | Again, layout: int
    ) -> None:
        self.slots = slots
        self.grouping = grouping
        self._first = first
        # Needed to locate the keys again if the store is packed in the meantime.
        self._batch = batch
        self.layout = layout

    @property
    def first(self) -> Slots:
        """One row of each group."""
        return self.grouping.rows if self._first is None else self._first

    def __len__(self) -> int:
        return len(self.slots)


class Session(SlotSearch):
    """A task's access to its executor's store; made by `KeyedStore.session`, used by one thread.

    Notes
    -----
    Known keys are found in the session's own copy of the index, without the store's lock. The session holds its gate,
    a lock of its own, while it accesses the store's arrays; the store holds its lock and all gates to replace the
    arrays or to read a consistent copy. The lock order is store, then gates: a session never takes the store's lock
    while it holds its gate. User code runs under neither.
    """

    def __init__(self, store: SharedStore, task: int, gate: Lock) -> None:
        self.task = task
        self.gate = gate
        self.closed = False
        self._store = store
        self._cache = key_cache(store.make_index)
        self._layout = -1
        self._owner_version: object = None
        self._has_all = False
        self._foreign: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._scratch: Slots = np.empty(0, np.intp)
        self._counting: Slots = np.empty(0, np.intp)
        self._found: Slots = np.empty(0, np.intp)

    def locate(
        self, rows: pa.RecordBatch, key_columns: Sequence[str], hashes: Words, check: Words | None = None
    ) -> Located:
        """Find the slots of a batch's keys; new keys get new slots.

        Parameters
        ----------
        rows : RecordBatch
            The batch.
        key_columns : sequence of str
            Its key columns, in the declared order.
        hashes : ndarray of uint64
            The keys' hashes.
        check : ndarray of uint64, optional
            The keys' second, independent hashes; None if all are zero.

        Returns
        -------
        Located
            The distinct keys' slots, and the rows by key.

        Raises
        ------
        StateError
            If another task, or none, owns a key's shard; if nothing is declared yet; or if the session is closed.
        """
        if len(hashes) != rows.num_rows or (check is not None and len(check) != len(hashes)):
            what = f"hashes of {len(hashes)} rows" + ("" if check is None else f" and check of {len(check)} rows")
            raise StateError(f"a batch of {rows.num_rows} rows was passed with {what}; hash the same batch")
        batch = (rows, key_columns, hashes, check)
        most = self._store.storage.cached_keys
        if most is not None and len(self._cache) > most:
            self._cache = key_cache(self._store.make_index)
        while True:
            with self.gate:
                slots = self._cached(hashes, check)
                if _all_found(slots):
                    return self._located(slots, batch)
            if self._admit(np.flatnonzero(slots < 0), slots, batch):
                with self.gate:
                    if self._layout == self._store.layout:
                        return self._located(slots, batch)

    def locate_at(self, slots: Slots, layout: int, grouping: Grouping, again: Again) -> Located | None:
        """As `locate`, for rows whose slots are known; None if the slots have other numbers by now."""
        with self.gate:
            self._require_open()
            if layout != self._store.layout:
                return None
            self._require_owned(slots)
            return Located(slots, grouping, None, again, layout)

    def apply(self, located: Located, update: Update) -> list[Column]:
        """Replace the state of located keys by the result of `update`.

        Parameters
        ----------
        located : Located
            The keys, as `locate` gave them.
        update : callable
            Gets the keys' values, one array per field, and returns new ones; it must not change the arrays it gets.
            An array that is returned as the same object is not written. If `update` raises, nothing changes.

        Returns
        -------
        list of ndarray
            The new values.
        """
        current = self.gather(located)
        new = update(list(current))
        self._check_values(new, len(located.slots))
        self._write(located, [None if after is before else after for before, after in zip(current, new, strict=True)])
        return new

    def gather(self, located: Located, fields: Sequence[int] | None = None) -> list[Column]:
        """Return copies of the located keys' values, for all fields or those at the given positions.

        Parameters
        ----------
        located : Located
            The keys, as `locate` returned them.
        fields : sequence of int, optional
            Positions of fields; all by default.

        Returns
        -------
        list of ndarray or Ragged
            Copies of the values, one array per field.
        """
        while True:
            with self.gate:
                self._require_open()
                if located.layout == self._store.layout:
                    values = self._store.slots.values
                    chosen = values if fields is None else [values[field] for field in fields]
                    return [column.take(located.slots) for column in chosen]
            self._relocate(located)

    def scatter(
        self, located: Located, values: Sequence[Column | None], where: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Write values of located keys, one array per field; a field given as None stays unchanged.

        Parameters
        ----------
        located : Located
            The keys, as `locate` returned them.
        values : sequence of (ndarray, Ragged or None)
            One array per field.
        where : ndarray of bool, optional
            The keys to write; all by default.

        Raises
        ------
        StateError
            If an array does not fit its field or the number of keys, or the session is closed.
        """
        self._check_values(values, len(located.slots))
        chosen = None if where is None else np.flatnonzero(where)
        if chosen is not None:
            values = [None if column is None else column.take(chosen) for column in values]
        self._write(located, values, chosen)

    def _write(self, located: Located, values: Sequence[Column | None], chosen: Slots | None = None) -> None:
        while True:
            with self.gate:
                self._require_open()
                if located.layout == self._store.layout:
                    mark = DIRTY if self._store.track_dirty else LIVE
                    slots = located.slots if chosen is None else located.slots[chosen]
                    self._store.slots.write(slots, values, mark)
                    return
            self._relocate(located)

    def search(self, choose: Callable[[SlotArrays, Iterable[Slots]], Slots]) -> tuple[pa.RecordBatch, Words, Words]:
        """Return the keys of chosen slots with state, among those whose shards this task owns.

        Parameters
        ----------
        choose : callable
            Gets the store's arrays, and the slots in parts of limited size; returns some of these slots.

        Returns
        -------
        keys : RecordBatch
            The key columns.
        hashes, checks : ndarray of uint64
            Their hashes and checks.
        """
        while True:
            with self.gate:
                self._require_open()
                arrays, layout = self._store.slots, self._store.layout
                # State on disk may have more keys than fit in memory.
                slots = choose(arrays, map(self._owned_live, arrays.windows()))
                hashes, checks = arrays.hashes.take(slots), arrays.checks.take(slots)
            keys = self._store.keys_at(slots, layout)
            if keys is not None:
                return keys, hashes, checks

    def _owned_live(self, window: slice) -> Slots:
        arrays = self._store.slots
        owned = self._store.owner.take(arrays.shards[window]) == self.task
        slots: Slots = window.start + np.flatnonzero(((arrays.marks[window] & LIVE) != 0) & owned)
        return slots

    def prune(self, located: Located, remaining_of: RemainingOf, times: ExpiryTimes) -> bool:
        """Remove located keys that have no state left; returns whether there are any. See `sweep`."""
        while True:
            with self.gate:
                self._require_open()
                if located.layout == self._store.layout:
                    return self._swept(located.slots, remaining_of, times)
            self._relocate(located)

    def sweep(
        self, start: int, count: int, remaining_of: RemainingOf, times: ExpiryTimes, shards: Shards | None = None
    ) -> tuple[int, bool]:
        """Remove expired state from a range of slots, for keys whose shards this task owns.

        Parameters
        ----------
        start, count : int
            The range of slots.
        remaining_of : callable
            Gets keys' values, number and times; returns the values without expired state, an unchanged column as the
            same object, and which keys have any left.
        times : ExpiryTimes
            The time by each clock.
        shards : ndarray of bool, optional
            The shards; all of the task by default.

        Returns
        -------
        int, bool
            The slot at which to continue, 0 after the last one; and whether any key has no state left.
        """
        with self.gate:
            self._require_open()
            arrays = self._store.slots
            stop = min(start + count, arrays.used)
            own = self._store.owner == self.task
            wanted = (own if shards is None else own & shards).take(arrays.shards[start:stop])
            slots = start + np.flatnonzero(wanted & ((arrays.marks[start:stop] & LIVE) != 0))
            any_deleted = len(slots) > 0 and self._swept(slots, remaining_of, times)
            return (0 if stop >= arrays.used else stop), any_deleted

    def _swept(self, slots: Slots, remaining_of: RemainingOf, times: ExpiryTimes) -> bool:
        arrays, tracked = self._store.slots, self._store.track_dirty
        values = [column.take(slots) for column in arrays.values]
        left, has_any = remaining_of(values, len(slots), times)
        changes = [None if after is before else after for before, after in zip(values, left, strict=True)]
        if any(change is not None for change in changes):
            # The marks stay: every other copy of the state drops the same entries by their expiry times.
            arrays.write(slots, changes, arrays.marks[slots])
        deleted = slots[~has_any]
        if len(deleted):
            arrays.reset(deleted, TOMBSTONE if tracked else EMPTY)
        return len(deleted) > 0

    def tidy(self) -> None:
        """Free the slots of keys without state, if there are many."""
        self._store.tidy()

    def close(self) -> None:
        """Close the session; later calls raise StateError."""
        self._store.close_session(self)

    def _cached(self, hashes: Words, check: Words | None) -> Slots:
        self._require_open()
        store = self._store
        if self._layout != store.layout:
            self._cache = key_cache(store.make_index)
            self._layout = store.layout
        return self._cache.find(hashes, check, store.slots, check is not None or store.has_checks)

    def _located(self, slots: Slots, batch: Batch) -> Located:
        if len(slots) >= MANY_ROWS and self._store.slots.used <= len(slots):
            distinct, grouping = self._counted(slots)
            first = None
        else:
            distinct, ordinals, first = few_grouped(slots) if len(slots) <= FEW_ROWS else self._group(slots)
            grouping = Grouping(ordinals, len(distinct))
        self._require_owned(distinct)
        return Located(distinct, grouping, first, batch, self._layout)

    def _counted(self, slots: Slots) -> tuple[Slots, Grouping]:
        """As `_group`, if there are no more slots than rows; in the order of slots, if any repeats."""
        used = self._store.slots.used
        counts = np.bincount(slots, minlength=used)
        distinct = counts.nonzero()[0]
        if len(distinct) == len(slots):
            return slots, Grouping(np.arange(used), used, counts)
        if len(distinct) == used:
            return distinct, Grouping(slots, used, counts)
        if len(self._scratch) < used:
            self._scratch = np.empty(2 * self._store.slots.capacity, np.intp)
        self._scratch[distinct] = np.arange(len(distinct))
        return distinct, Grouping(self._scratch.take(slots), len(distinct), counts.take(distinct))

    def _group(self, slots: Slots) -> tuple[Slots, Slots, Slots]:
        """Return the distinct slots, in the order of rows if none repeats; each row's position; and one row of each."""
        if self._store.storage.on_disk:
            return sorted_groups(slots)
        capacity = self._store.slots.capacity
        if len(self._scratch) < capacity:
            self._scratch = np.empty(2 * capacity, np.intp)
        if len(self._counting) < len(slots):
            self._counting = np.arange(2 * len(slots))
            self._counting.flags.writeable = False
            self._found = np.empty(2 * len(slots), np.intp)
        scratch, rows = self._scratch, self._counting[: len(slots)]
        # If several rows have one slot, the last write wins, and its row represents the slot.
        scratch[slots] = rows
        # Into a reused array: allocating one of this size costs more than the lookup.
        found = scratch.take(slots, out=self._found[: len(slots)], mode="clip")
        first = (found == rows).nonzero()[0]
        if len(first) == len(slots):
            return slots, rows, rows
        distinct = slots.take(first)
        scratch[distinct] = rows[: len(distinct)]
        return distinct, scratch.take(slots), first

    def _require_owned(self, slots: Slots) -> None:
        version = self._store.owner_version
        if version is not self._owner_version:
            self._foreign = self._store.owner != self.task
            self._has_all = not self._foreign.any()
            self._owner_version = version
        if self._has_all:
            return
        shards = self._store.slots.shards.take(slots)
        foreign = self._foreign.take(shards)
        if np.count_nonzero(foreign):
            raise self._store.not_owned(int(shards[foreign.argmax()]), self.task)

    def _require_open(self) -> None:
        if self.closed:
            raise StateError(
                f"the session of task {self.task} is closed, or a newer session replaced it; open one with "
                "KeyedStore.session"
            )

    def _admit(self, missing: Slots, located: Slots, batch: Batch) -> bool:
        """Find or make the slots of missing rows, and enter them in `located`; returns whether they are still valid."""
        rows, key_columns, hashes, check = batch
        keys, ordinals = distinct_keys(hashes[missing], None if check is None else check[missing])
        picked = missing[keys]
        layout, slots = self._store.admit(self.task, rows, key_columns, picked, hashes, check)
        with self.gate:
            if not layout == self._layout == self._store.layout:
                return False
            checks = np.zeros(len(picked), np.uint64) if check is None else check[picked]
            self._cache.add(hashes[picked], checks, slots)
        located[missing] = slots.take(ordinals)
        return True

    def _relocate(self, located: Located) -> None:
        batch = located._batch
        if isinstance(batch, tuple):
            rows, key_columns, hashes, check = batch
            found = self._store.admit(self.task, rows, key_columns, located.first, hashes, check)
        else:
            found = batch()
        located.layout, located.slots = found

    def _check_count(self, values: Sequence[Column | None]) -> None:
        fields = self._store.slots.fields
        if len(values) != len(fields):
            raise StateError(f"an update returned {len(values)} arrays for the {len(fields)} fields {_names(fields)}")

    def _check_values(self, values: Sequence[Column | None], count: int) -> None:
        self._check_count(values)
        for field, new in zip(self._store.slots.fields, values, strict=True):
            if new is None:
                continue
            if isinstance(new, np.ndarray) and new.shape == (count,) and new.dtype is field.dtype and not field.ragged:
                continue
            if field.ragged != isinstance(new, Ragged):
                wanted = "lists, as a Ragged" if field.ragged else "one value per key, as an array"
                raise StateError(f"state field {field.name!r} holds {wanted}, not {type(new).__name__}")
            if len(new) != count or (not field.ragged and new.ndim != 1):
                shape = (len(new),) if field.ragged else new.shape
                raise StateError(
                    f"state field {field.name!r}: an array of shape {shape} for {count} keys; give one each"
                )
            if new.dtype is not field.dtype and not np.can_cast(new.dtype, field.dtype, "safe"):
                raise StateError(f"state field {field.name!r} is {field.dtype.name}; {new.dtype.name} does not fit")


def _all_found(slots: Slots) -> bool:
    if len(slots) <= FEW_ROWS:
        return min(slots.tolist(), default=0) >= 0
    return bool(np.minimum.reduce(slots) >= 0)


def _names(fields: Sequence[Any]) -> str:
    return ", ".join(repr(field.name) for field in fields)
