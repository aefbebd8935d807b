"""One task's way into the keyed state: it finds the slots of a batch's keys, reads them and writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.index import Slots, Words
from dask_elastic.state.key_table import KeyTable, distinct_keys
from dask_elastic.state.slots import DIRTY, EMPTY, GONE, LIVE, Column
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.vocab.errors import StateError
from dask_elastic.vocab.lock import Lock

if TYPE_CHECKING:
    from dask_elastic.state.store import KeyedStore

Values: TypeAlias = Column
Batch = tuple[pa.RecordBatch, Sequence[str], Words, Words | None]
"""Rows, key columns, hashes and second hashes."""
Update = Callable[[list[Values]], list[Values]]
LeftOf = Callable[[list[Values], int, float], tuple[list[Values], npt.NDArray[np.bool_]]]


class Located:
    """The keys of one batch, found in the store.

    Attributes
    ----------
    slots : ndarray of intp
        The slot of each distinct key.
    grouping : Grouping
        The rows by key; group i is the key in `slots[i]`.
    first : ndarray of intp
        A row of each group.
    """

    __slots__ = ("_checks", "_hashes", "_key_columns", "_layout", "_rows", "first", "grouping", "slots")

    def __init__(
        self,
        slots: Slots,
        grouping: Grouping,
        first: Slots,
        batch: Batch,
        layout: int,
    ) -> None:
        self.slots = slots
        self.grouping = grouping
        self.first = first
        # What it takes to find the keys again, should the store be packed meanwhile.
        self._rows, self._key_columns, self._hashes, self._checks = batch
        self._layout = layout

    def __len__(self) -> int:
        return len(self.slots)


class Session:
    """A task's private access to the store of its executor; made by `KeyedStore.session` and used by one thread.

    Notes
    -----
    Hits are found in a private cache of the index without the store's lock. The session holds its gate, a lock of its
    own, whenever it touches the store's arrays; whoever replaces these or wants to see them at rest holds the store's
    lock and all gates. The order is store lock, then gates: a session never asks for the store's lock while it holds
    its gate. User code runs under neither.
    """

    def __init__(self, store: KeyedStore, name: int, gate: Lock) -> None:
        self.name = name
        self.gate = gate
        self.closed = False
        self._store = store
        self._cache = KeyTable(store.make_index)
        self._layout = -1
        self._owner_version: object = None
        self._has_all = False
        self._strange: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._scratch: Slots = np.empty(0, np.intp)
        self._counting: Slots = np.empty(0, np.intp)
        self._found: Slots = np.empty(0, np.intp)

    def locate(
        self, rows: pa.RecordBatch, key_columns: Sequence[str], hashes: Words, check: Words | None = None
    ) -> Located:
        """Find the keys of a batch, making room for those that are new.

        Parameters
        ----------
        rows : RecordBatch
            The batch.
        key_columns : sequence of str
            Its key columns, in the declared order.
        hashes : ndarray of uint64
            The keys' hashes.
        check : ndarray of uint64, optional
            The keys' second, independent hashes; None where all are zero.

        Returns
        -------
        Located
            The distinct keys' slots, and the rows by key.

        Raises
        ------
        StateError
            If a key's shard is not this task's, or nothing is declared yet.
        """
        for what, words in ("hashes", hashes), ("check", check):
            if words is not None and len(words) != rows.num_rows:
                raise StateError(f"{rows.num_rows} rows came with {what} of {len(words)} rows; hash the very batch")
        batch = (rows, key_columns, hashes, check)
        while True:
            with self.gate:
                slots = self._cached(hashes, check)
                if not len(slots) or np.minimum.reduce(slots) >= 0:
                    return self._located(slots, batch)
            self._admit(np.flatnonzero(slots < 0), batch)

    def apply(self, located: Located, update: Update) -> list[Values]:
        """Replace the state of located keys by what `update` makes of it.

        Parameters
        ----------
        located : Located
            The keys, as `locate` gave them.
        update : callable
            Gets the keys' values, one array a field, and returns new ones; it must not change the arrays it gets. An
            array that it returns as it came is not written. If it raises, nothing changes.

        Returns
        -------
        list of ndarray
            The new values.
        """
        current = self.gather(located)
        new = update(list(current))
        self._check_count(new)
        self.scatter(located, [None if after is before else after for before, after in zip(current, new, strict=True)])
        return new

    def gather(self, located: Located, fields: Sequence[int] | None = None) -> list[Values]:
        """Return copies of the located keys' values, of all fields or of those at the given positions."""
        while True:
            with self.gate:
                self._require_open()
                if located._layout == self._store.layout:
                    values = self._store.slots.values
                    chosen = values if fields is None else [values[field] for field in fields]
                    return [column.take(located.slots) for column in chosen]
            self._relocate(located)

    def scatter(self, located: Located, values: Sequence[Values | None]) -> None:
        """Write values of located keys, one array a field; a field whose array is None stays as it is."""
        self._check_values(values, len(located.slots))
        while True:
            with self.gate:
                self._require_open()
                if located._layout == self._store.layout:
                    mark = DIRTY if self._store.track_dirty else LIVE
                    self._store.slots.write(located.slots, values, mark)
                    return
            self._relocate(located)

    def sweep(self, start: int, count: int, left_of: LeftOf, now: float) -> tuple[int, bool]:
        """Take away what is over of the keys in some slots, as far as their shards are this task's.

        Parameters
        ----------
        start, count : int
            The slots.
        left_of : callable
            Gets keys' values, their count and the time; returns the values that are left, a column that is left as it
            is being the very one, and which keys have anything left.
        now : float
            The time.

        Returns
        -------
        next : int
            Where to go on, 0 after the last slot.
        any_gone : bool
            Whether a key has nothing left now.
        """
        with self.gate:
            self._require_open()
            arrays = self._store.slots
            stop = min(start + count, arrays.used)
            window = np.arange(start, stop)
            live = (arrays.marks[start:stop] & LIVE) != 0
            slots = window[live & (self._store.owner.take(arrays.shards[start:stop]) == self.name)]
            gone = self._swept(slots, left_of, now) if len(slots) else False
            return (0 if stop >= arrays.used else stop), gone

    def _swept(self, slots: Slots, left_of: LeftOf, now: float) -> bool:
        arrays, tracked = self._store.slots, self._store.track_dirty
        values = [column.take(slots) for column in arrays.values]
        left, has_any = left_of(values, len(slots), now)
        changes = [None if after is before else after for before, after in zip(values, left, strict=True)]
        if any(change is not None for change in changes):
            # What has expired needs no telling: whoever has it knows by the time that it has.
            arrays.write(slots, changes, arrays.marks[slots])
        gone = slots[~has_any]
        if len(gone):
            arrays.reset(gone, GONE if tracked else EMPTY)
        return len(gone) > 0

    def tidy(self) -> None:
        """Give the room of keys that have no state any more back, if there are many."""
        self._store.tidy()

    def close(self) -> None:
        """End the session; a later use of it raises StateError."""
        self._store.close_session(self)

    def _cached(self, hashes: Words, check: Words | None) -> Slots:
        self._require_open()
        store = self._store
        if self._layout != store.layout:
            self._cache = KeyTable(store.make_index)
            self._layout = store.layout
        return self._cache.find(hashes, check, store.slots, check is not None or store.has_checks)

    def _located(self, slots: Slots, batch: Batch) -> Located:
        distinct, ordinals, first = self._group(slots)
        self._require_owned(distinct)
        return Located(distinct, Grouping(ordinals, len(distinct)), first, batch, self._layout)

    def _group(self, slots: Slots) -> tuple[Slots, Slots, Slots]:
        """Return distinct slots, the number of each row's, and a row of each; no sort, one write per row."""
        capacity = self._store.slots.capacity
        if len(self._scratch) < capacity:
            self._scratch = np.empty(capacity, np.intp)
        if len(self._counting) < len(slots):
            self._counting = np.arange(2 * len(slots))
            self._counting.flags.writeable = False
            self._found = np.empty(2 * len(slots), np.intp)
        scratch, rows = self._scratch, self._counting[: len(slots)]
        # Of the rows of one slot, the one whose number is left in the slot's place stands for it.
        scratch[slots] = rows
        # Into an array of the session's own: fresh memory of that size costs more than the look-up.
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
            self._strange = self._store.owner != self.name
            self._has_all = not self._strange.any()
            self._owner_version = version
        if self._has_all:
            return
        shards = self._store.slots.shards.take(slots)
        strange = self._strange.take(shards)
        if np.count_nonzero(strange):
            raise self._store.not_owned(int(shards[strange.argmax()]), self.name)

    def _require_open(self) -> None:
        if self.closed:
            raise StateError(
                f"the session of task {self.name} is closed, or a newer one took its place; open one with "
                "KeyedStore.session"
            )

    def _admit(self, missing: Slots, batch: Batch) -> None:
        rows, key_columns, hashes, check = batch
        keys, _ = distinct_keys(hashes[missing], None if check is None else check[missing])
        picked = missing[keys]
        layout, slots = self._store.admit(self.name, rows, key_columns, picked, hashes, check)
        with self.gate:
            if layout == self._layout == self._store.layout:
                checks = np.zeros(len(picked), np.uint64) if check is None else check[picked]
                self._cache.add(hashes[picked], checks, slots)

    def _relocate(self, located: Located) -> None:
        located._layout, located.slots = self._store.admit(
            self.name, located._rows, located._key_columns, located.first, located._hashes, located._checks
        )

    def _check_count(self, values: Sequence[Values | None]) -> None:
        fields = self._store.slots.fields
        if len(values) != len(fields):
            raise StateError(f"an update returned {len(values)} arrays for the {len(fields)} fields {_names(fields)}")

    def _check_values(self, values: Sequence[Values | None], count: int) -> None:
        self._check_count(values)
        for field, new in zip(self._store.slots.fields, values, strict=True):
            if new is None:
                continue
            if field.ragged != isinstance(new, Ragged):
                wanted = "lists, as a Ragged" if field.ragged else "one value a key, as an array"
                raise StateError(f"state field {field.name!r} holds {wanted}; {type(new).__name__} came")
            if len(new) != count or (not field.ragged and new.ndim != 1):
                shape = (len(new),) if field.ragged else new.shape
                raise StateError(f"state field {field.name!r}: an array of shape {shape} came for {count} keys")
            if new.dtype is not field.dtype and not np.can_cast(new.dtype, field.dtype, "safe"):
                raise StateError(f"state field {field.name!r} is {field.dtype.name}; {new.dtype.name} does not fit it")


def _names(fields: Sequence[Any]) -> str:
    return ", ".join(repr(field.name) for field in fields)
