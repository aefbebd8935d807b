"""Rows that are copied to another store while tasks change them: the other store ends up with the same state."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.migration.copy_pieces import CopyPieces
from dask_elastic.state.codec import encode
from dask_elastic.state.outgoing_rows import AT_ONCE, OutgoingRows
from dask_elastic.state.slots import LIVE, TOMBSTONE, SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.aggregates.field import Field

KEYS = 6
SCHEMA, FIELDS = pa.schema({"k": pa.int64()}), [Field("n", np.dtype(np.int64), 0)]


class Copying:
    """A store whose rows are copied to another one, a few at a time."""

    def __init__(self):
        self.here, self.there = self._store(), self._store()
        self.here.declare(SCHEMA, FIELDS)
        self.here.track_dirty = True
        for shard in range(4):
            self.here.grant(shard, 1)
        self.rows = None

    def _store(self):
        return KeyedStore(4, lambda hashes: (hashes % np.uint64(4)).astype(np.intp))

    def write(self, key):
        """Add one to the count of a key."""
        session, rows = self.here.session(1), pa.record_batch({"k": [key]})
        located = session.locate(rows, ["k"], np.array([key], np.uint64))
        session.apply(located, lambda current: [current[0] + 1])

    def delete(self, key):
        """Delete the state of a key."""
        _, slots = self.here.find(np.array([key], np.uint64), np.zeros(1, np.uint64))
        with self.here.still():
            live = slots[(slots >= 0) & ((self.here.slots.marks[slots] & LIVE) != 0)]
            self.here.slots.reset(live, TOMBSTONE)

    def cut(self, key):
        """Copy the changes for a checkpoint."""
        self.here.cut(lambda changed, live: ())

    def pack(self, key):
        """Free the slots of deleted keys."""
        with self.here.held():
            self.here._pack()

    def portion(self, key):
        """Copy the next rows; at first, begin."""
        if self.rows is None:
            self.rows = OutgoingRows(self.here, at_once=2)
            self._sweep = self.rows.sweep()
        portion = next(self._sweep, None)
        if portion is None:
            self._sweep = self.rows.sweep()
        else:
            self._install(portion)

    def _install(self, portion):
        for rows, changed in ((portion.unchanged, False), (portion.changed, True)):
            self.there.install(encode(rows), dirty=changed)

    def finish(self):
        """Copy what is left."""
        self.portion(0)
        for portion in self.rows.rest():
            self._install(portion)


def state(store):
    """The count of each key."""
    keys, (counts,) = store.rows()
    return dict(zip(keys["k"].to_pylist(), counts.tolist(), strict=True))


def changes(store):
    """The keys that have changed since the last cut, deleted ones included."""
    marked = store.extract(dirty_only=True, clear=False)
    return set(marked["k"].to_pylist())


OPERATIONS = ("write", "delete", "cut", "pack", "portion")
steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, KEYS - 1)), max_size=30)


def check(done):
    """Carry out operations, finish the copy, and compare the stores."""
    copying = Copying()
    for name, key in done:
        getattr(copying, name)(key)
    copying.finish()
    assert state(copying.there) == state(copying.here)
    assert changes(copying.there) >= changes(copying.here)
    if not any(name == "cut" for name, _ in done):
        assert changes(copying.there) <= set(range(KEYS))


@settings(max_examples=150, deadline=None)
@given(steps)
def test_other_store_has_the_same_state_and_at_least_the_same_changes(done):
    check(done)


def test_store_without_keys_passes_its_declaration_on():
    copying = Copying()
    copying.finish()
    assert copying.there.key_schema == SCHEMA
    assert len(copying.there) == 0


def test_newer_copy_ends_an_older_one():
    copying = Copying()
    for key in range(KEYS):
        copying.write(key)
    copying.portion(0)
    older, newer = copying.rows, OutgoingRows(copying.here)
    older.end()
    assert list(older.rest()) == []
    assert sum(len(portion.changed.hashes) for portion in newer.sweep()) == KEYS
    newer.end()
    assert copying.here.slots.uncopied is None
    copying.write(0)


def test_round_ends_though_keys_are_added_as_fast_as_they_are_copied():
    copying = Copying()
    for key in range(KEYS):
        copying.write(key)
    rows = OutgoingRows(copying.here, at_once=2)
    for number, portion in enumerate(rows.sweep()):
        assert number < KEYS
        copying._install(portion)
        for key in (2 * number, 2 * number + 1):
            copying.write(KEYS + key)
    for portion in rows.rest():
        copying._install(portion)
    assert state(copying.there) == state(copying.here)


def test_deleted_rows_that_are_kept_for_the_copy_are_not_packed_again_and_again():
    copying, count = Copying(), 5_000
    session, keys = copying.here.session(1), np.arange(count)
    located = session.locate(pa.record_batch({"k": keys}), ["k"], keys.astype(np.uint64))
    session.apply(located, lambda current: [current[0] + 1])
    rows, layout = OutgoingRows(copying.here), copying.here.layout
    with copying.here.still():
        copying.here.slots.reset(np.arange(count))
    copying.here.tidy()
    assert (copying.here.layout, copying.here.slots.used) == (layout, count)
    assert sum(len(portion.unchanged.hashes) for portion in rows.sweep()) == count
    copying.here.tidy()
    assert copying.here.slots.used == 0


def writes_are_not_noted(monkeypatch):
    real = SlotArrays.write

    def write(self, slots, values, mark):
        uncopied, self.uncopied = self.uncopied, None
        real(self, slots, values, mark)
        self.uncopied = uncopied

    monkeypatch.setattr(SlotArrays, "write", write)


def deletions_are_not_noted(monkeypatch):
    real = SlotArrays.reset

    def reset(self, slots, mark=0):
        uncopied, self.uncopied = self.uncopied, None
        real(self, slots, mark)
        self.uncopied = uncopied

    monkeypatch.setattr(SlotArrays, "reset", reset)


def tombstones_from_before_the_copy_are_left_out(monkeypatch):
    real = SlotArrays.begin_copy

    def begin_copy(self):
        real(self)
        self.uncopied &= (self.marks & LIVE) != 0

    monkeypatch.setattr(SlotArrays, "begin_copy", begin_copy)


def packing_forgets_deletions(monkeypatch):
    monkeypatch.setattr(SlotArrays, "kept", lambda self, window: window.start + np.flatnonzero(self.marks[window]))


def packing_forgets_what_is_not_copied(monkeypatch):
    real = SlotArrays.adopt

    def adopt(self, other, kept):
        real(self, other, kept)
        if self.uncopied is not None:
            self.uncopied[:] = False

    monkeypatch.setattr(SlotArrays, "adopt", adopt)


def marks_of_changes_are_left_out(monkeypatch):
    real = Copying._install
    monkeypatch.setattr(
        Copying, "_install", lambda self, portion: real(self, portion._replace(changed=portion.unchanged))
    )


WRITTEN = [("write", key) for key in range(4)]
MUTANTS = {
    writes_are_not_noted: [*WRITTEN, ("portion", 0), ("write", 0)],
    deletions_are_not_noted: [*WRITTEN, ("portion", 0), ("delete", 0)],
    tombstones_from_before_the_copy_are_left_out: [*WRITTEN, ("cut", 0), ("delete", 1), ("portion", 0)],
    packing_forgets_deletions: [*WRITTEN, ("portion", 0), ("delete", 0), ("cut", 0), ("pack", 0)],
    packing_forgets_what_is_not_copied: [*WRITTEN, ("portion", 0), ("pack", 0)],
    marks_of_changes_are_left_out: [*WRITTEN, ("portion", 0)],
}
"""Each with operations that find it."""


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_mutant_is_found(monkeypatch, mutate):
    check(MUTANTS[mutate])
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check(MUTANTS[mutate])


class Ticks:
    """A clock by which each row that is copied takes some seconds, read while tasks wait."""

    def __init__(self, store, seconds):
        self.store, self.seconds = store, seconds

    def __call__(self):
        # Called before and after each piece, with the store held still.
        flags = self.store.slots.uncopied
        left = int(np.count_nonzero(flags)) if flags is not None else 0
        return -self.seconds * left


class Recorded:
    """Pieces that note how long tasks waited for each."""

    def __init__(self, pieces):
        self.pieces, self.waits = pieces, []

    @property
    def rows(self):
        return self.pieces.rows

    def took(self, rows, seconds):
        self.waits.append(seconds)
        self.pieces.took(rows, seconds)


@pytest.mark.parametrize("seconds", [1e-6, 1e-5, 5e-5])
def test_tasks_wait_briefly_for_each_piece_however_slow_a_row_is(seconds):
    store = KeyedStore(4, lambda hashes: (hashes % np.uint64(4)).astype(np.intp))
    store.declare(SCHEMA, FIELDS)
    for shard in range(4):
        store.grant(shard, 1)
    session, keys = store.session(1), np.arange(20_000)
    located = session.locate(pa.record_batch({"k": keys}), ["k"], keys.astype(np.uint64))
    session.apply(located, lambda current: [current[0] + 1])
    pieces = Recorded(CopyPieces(AT_ONCE, 0.002))
    rows = OutgoingRows(store, AT_ONCE, pieces, Ticks(store, seconds))
    there = KeyedStore(4, lambda hashes: (hashes % np.uint64(4)).astype(np.intp))
    for portion in rows.sweep():
        there.install(encode(portion.unchanged))
    assert len(there) == len(keys)
    # The first piece is a guess.
    assert max(pieces.waits[1:]) <= 0.002 * (1 + 1e-6)
    assert len(pieces.waits) <= 6 + 1.5 * max(len(keys) * seconds / 0.002, len(keys) / AT_ONCE)


def test_memory_is_allocated_while_tasks_go_on(monkeypatch):
    store = KeyedStore(4, lambda hashes: (hashes % np.uint64(4)).astype(np.intp), make_lock=threading.Lock)
    store.declare(SCHEMA, FIELDS)
    for shard in range(4):
        store.grant(shard, 1)
    session, other, free = store.session(1), store.session(2), []

    def prepared(slots, needed, address_space):
        free.append(not other.gate.locked())
        return made(slots, needed, address_space)

    made = SlotArrays.prepared
    monkeypatch.setattr(SlotArrays, "prepared", prepared)
    for first in range(0, 10_000, 1_000):
        keys = np.arange(first, first + 1_000)
        located = session.locate(pa.record_batch({"k": keys}), ["k"], keys.astype(np.uint64))
        session.apply(located, lambda current: [current[0] + 1])
    assert len(free) > 2
    assert all(free)
    keys, (values,) = store.rows()
    assert sorted(keys["k"].to_pylist()) == list(range(10_000))
    assert set(values.tolist()) == {1}
