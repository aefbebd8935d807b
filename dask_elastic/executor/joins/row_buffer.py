"""The buffered rows of a join or of windows in the state of one task: rows, and a mark for each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.joins.due_rows import DueRows, Mask
from dask_elastic.executor.joins.sorted_rows import SortedRows, Times
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.joins.layout import BEGINNING, CHECK, HASH, KIND, MARK, NEWEST, NUMBER, TIME
from dask_elastic.state.session import Session
from dask_elastic.state.slots import DIRTY, EMPTY, LIVE, TOMBSTONE, Column, SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.joins.joining import LEFT, RIGHT
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import StateError
from dask_elastic.vocab.row_counts import RowCounts

OF_MARK, OF_NEWEST = -1, -2
"""Numbers of slots that are no rows; rows of a shard are numbered from 0."""

_WORTH_TIDYING = 4096


class BufferLayout(Protocol):
    """What a buffer needs to know of the fields; see `JoinLayout`, whose first fields all layouts have."""

    keys: tuple[str, ...]
    key_schema: pa.Schema
    fields: tuple[Field, ...]
    reaches: dict[int, int]
    searched: bool


class RowBuffer:
    """The rows that wait for others, or for a watermark, as slots of the executor's store; belongs to one task.

    Each row is a slot whose identity is made of its key and its number within its shard, so that it moves, is flushed
    and restored as every other state. A *mark* per shard counts its rows and has its watermark: replays number rows
    alike, and find the same rows late.

    Parameters
    ----------
    layout : BufferLayout
        The fields.
    store : KeyedStore
        The state of the executor in this process.
    session : Session
        The task's session with the store.
    space : KeySpace
        The component's key space.

    Attributes
    ----------
    sorted : list of SortedRows
        The rows of each side by key and time; of those sides that are searched.
    due : dict of int to DueRows
        The rows of each kind, by the time at which they are due.
    marks : ndarray of intp
        The slot of each shard's mark, -1 if it has none.

    Notes
    -----
    The index, `sorted` and `due`, is derived from the state. It is built again when slots have been renumbered, and
    follows shards that the task gets or loses.
    """

    def __init__(self, layout: BufferLayout, store: KeyedStore, session: Session, space: KeySpace):
        self._layout = layout
        self.store = store
        self.space = space
        self.keys = layout.keys
        self._session = session
        self._key_schema = layout.key_schema
        self._reaches = layout.reaches
        self._searched = layout.searched
        self._numbering: int | None = None
        self._version: object = None
        self._changes = np.zeros(space.shards, np.int64)
        self._removed = 0
        self._declared = False
        self._clear()

    def _clear(self) -> None:
        self.sorted = [SortedRows(), SortedRows()]
        self.due = {kind: DueRows() for kind in self._reaches}
        self.marks: Slots = np.full(self.space.shards, -1, np.intp)
        self._owned: Mask = np.zeros(self.space.shards, np.bool_)

    def declare(self) -> None:
        """Declare the state, before its first use."""
        if not self._declared:
            self.store.declare(self._key_schema, self._layout.fields)
            self._declared = True

    @contextmanager
    def open(self) -> Iterator[SlotArrays]:
        """Hold the session's gate, so that slots keep their numbers; yields the store's arrays."""
        with self._session.gate:
            if self._session.closed:
                raise StateError(f"the session of task {self._session.task} is closed")
            self._synchronise()
            yield self.store.slots

    @property
    def numbering(self) -> int:
        """Changes when slots are renumbered; read it while the buffer is open."""
        return self.store.layout

    @property
    def mark(self) -> int:
        """The mark of slots that are written."""
        return DIRTY if self.store.track_dirty else LIVE

    # the index

    def _synchronise(self) -> None:
        """Let the index follow the state: other tasks may have packed it, and shards may have moved."""
        version, numbering = self.store.owner_version, self.store.layout
        if version is self._version and numbering == self._numbering:
            return
        # Read after the version: a later change replaces it again.
        changes, owned = self.store.changes.copy(), self.store.owner == self._session.task
        if numbering != self._numbering:
            self._clear()
        kept = self._owned & owned & (changes == self._changes)
        if not np.array_equal(kept, self._owned):
            self._keep(kept)
        self._version, self._numbering, self._changes, self._owned = version, numbering, changes, owned
        gained = owned & ~kept
        if gained.any():
            self._gather(gained)

    def _keep(self, shards: Mask) -> None:
        of = self.store.slots.shards

        def chosen(slots: Slots) -> Mask:
            return shards.take(of.take(slots))

        for rows in self.sorted:
            rows.keep(chosen)
        for due in self.due.values():
            due.keep(chosen)
        self.marks[~shards] = -1

    def _gather(self, shards: Mask) -> None:
        arrays = self.store.slots
        for window in arrays.windows():
            live = (arrays.marks[window] & LIVE) != 0
            slots = window.start + np.flatnonzero(live & shards.take(arrays.shards[window]))
            kinds = arrays.values[KIND].take(slots)
            of_marks = slots[kinds == MARK]
            self.marks[arrays.shards.take(of_marks)] = of_marks
            for kind in (LEFT, RIGHT, NEWEST):
                self.index(arrays, kind, slots[kinds == kind])

    def index(self, arrays: SlotArrays, kind: int, slots: Slots) -> None:
        """Add slots of a kind, which are written, to the index."""
        times = arrays.values[TIME].take(slots)
        if kind in self.due:
            self.due[kind].add(times + self._reaches[kind], slots)
        if self._searched and kind != NEWEST:
            self.sorted[kind].add(arrays.values[HASH].take(slots), times, slots, self._described)

    def _described(self, slots: Slots) -> tuple[Slots, Words, Times]:
        arrays = self.store.slots
        left = slots[(arrays.marks.take(slots) & LIVE) != 0]
        return left, arrays.values[HASH].take(left), arrays.values[TIME].take(left)

    # slots

    def admit(self, keys: pa.RecordBatch, hashes: Words, checks: Words | None, numbers: Times) -> tuple[int, Slots]:
        """Return the slots of rows; new rows get new slots, which are empty until they are written.

        Parameters
        ----------
        keys : RecordBatch
            Batch with the rows' keys.
        hashes, checks : ndarray of uint64
            The hashes of the keys; no checks if all are zero.
        numbers : ndarray of int64
            The rows' numbers within their shards.

        Returns
        -------
        numbering : int
            The numbering for which the slots are valid.
        slots : ndarray of intp
            One per row.
        """
        parts = part_hashes(hashes, numbers, self.space.groups)
        second = part_checks(checks, numbers, len(hashes))
        # In the order of their hashes, which the store's index would have to sort else.
        order = np.argsort(parts)
        numbering, found = self.store.admit(self._session.task, keys, self.keys, order, parts, second)
        slots = np.empty_like(found)
        slots[order] = found
        return numbering, slots

    def admit_newest(self, keys: pa.RecordBatch, chosen: Slots, hashes: Words, checks: Words) -> tuple[int, Slots]:
        """Return the slots of the newest settled rows of keys, as `admit` does for rows.

        Parameters
        ----------
        keys : RecordBatch
            Batch with the keys.
        chosen : ndarray of intp
            The row of the batch with each key.
        hashes, checks : ndarray of uint64
            The identity of each slot.

        Returns
        -------
        numbering : int
            The numbering for which the slots are valid.
        slots : ndarray of intp
            One per key.
        """
        picked = keys.take(array_of(chosen))
        return self.store.admit(self._session.task, picked, self.keys, np.arange(len(chosen)), hashes, checks)

    def ensure_marks(self, shards: Slots, groups: Words) -> None:
        """Make the marks of shards that have none yet; the groups are those of the shards."""
        while True:
            with self.open():
                lacking = self.marks[shards] < 0
            if not lacking.any():
                return
            count = int(np.count_nonzero(lacking))
            nothing = [pa.nulls(count, field.type) for field in self._key_schema]
            keys = pa.RecordBatch.from_arrays(nothing, schema=self._key_schema)
            numbers = np.full(count, OF_MARK, np.int64)
            numbering, slots = self.admit(keys, groups[lacking], None, numbers)
            with self.open() as arrays:
                if numbering == self.numbering:
                    values = [field.initially(count) for field in self._layout.fields]
                    values[KIND], values[TIME] = np.full(count, MARK, np.int8), np.full(count, BEGINNING)
                    arrays.write(slots, values, self.mark)
                    self.marks[shards[lacking]] = slots

    def count(self, arrays: SlotArrays, rows: Slots, late: Slots, timeless: Slots) -> None:
        """Add to what marks count; each array has one number per shard."""
        changed = np.flatnonzero(rows + late + timeless)
        marks = self.marks[changed]
        values = self.unchanged()
        for field, counts in ((NUMBER, rows), (HASH, late), (CHECK, timeless)):
            before = arrays.values[field].take(marks)
            values[field] = before + counts[changed].astype(before.dtype)
        arrays.write(marks, values, self.mark)

    def tally(self, counts: RowCounts, settled: bool) -> None:
        """Add to the operator's metrics what became of rows, unless they were `settled` before a replay."""
        if not settled:
            task = self._session.task
            self.store.row_counts[task] = counts.plus(self.store.row_counts.get(task, ()))

    def reached(self, arrays: SlotArrays, shards: Slots, time: int) -> None:
        """Set the watermark of shards, unless it was later before."""
        marks = self.marks[shards]
        values = self.unchanged()
        values[TIME] = np.maximum(arrays.values[TIME].take(marks), time)
        arrays.write(marks, values, self.mark)

    def unchanged(self) -> list[Column | None]:
        """Return values for a write that changes nothing."""
        return [None] * len(self._layout.fields)

    def in_shards(self, shards: Slots) -> Callable[[Slots], Mask]:
        """Return a function that chooses, among slots, those in some shards."""
        wanted = np.zeros(self.space.shards, np.bool_)
        wanted[shards] = True
        arrays = self.store.slots

        def chosen(slots: Slots) -> Mask:
            return wanted.take(arrays.shards.take(slots))

        return chosen

    def remove(self, arrays: SlotArrays, slots: Slots) -> None:
        """Remove rows from the state."""
        arrays.reset(slots, TOMBSTONE if self.store.track_dirty else EMPTY)
        self._removed += len(slots)

    def tidy(self) -> None:
        """Free the slots of removed rows, if there are many; the buffer must not be open."""
        if self._removed > max(_WORTH_TIDYING, self.store.slots.used // 8):
            self._removed = 0
            self._session.tidy()


def ranks(shards: npt.NDArray[np.integer], count: int) -> Times:
    """Return for each row how many rows before it are in its shard.

    Parameters
    ----------
    shards : ndarray of int
        The shard of each row.
    count : int
        The number of shards.

    Returns
    -------
    ndarray of int64
        One number per row.

    Examples
    --------
    >>> ranks(np.array([3, 1, 3], np.uint8), 4).tolist()
    [0, 0, 1]
    """
    order = np.argsort(shards, kind="stable")
    sizes = np.bincount(shards, minlength=count)
    found = np.empty(len(shards), np.int64)
    found[order] = np.arange(len(shards)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return found
