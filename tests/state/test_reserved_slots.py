"""Slots in reserved arrays: they grow without being copied, and tasks go on meanwhile."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.state import reserved_array as reserved_array_module
from dask_elastic.state import slots as slots_module
from dask_elastic.state.reserved_array import HUGE_FROM, reserved_array
from dask_elastic.state.slots import SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.aggregates.field import Field

FIELDS = (
    Field("count", np.dtype(np.int64), 0),
    Field("least", np.dtype(np.float64), float("inf")),
    Field("zero", np.dtype(np.float64), -0.0),
    Field("at", np.dtype("M8[us]"), -1),
)
SLOT_BYTES = 21 + 4 * 8
KEYS = pa.schema({"k": pa.int64()})


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "_RESERVED_FROM", 2_000 * SLOT_BYTES)
    monkeypatch.setattr(slots_module, "_EXTENSION_BYTES", 100 * SLOT_BYTES)


def store_of(slots: int, fields: tuple[Field, ...] = FIELDS) -> KeyedStore:
    store = KeyedStore(4, lambda hashes: (hashes % np.uint64(4)).astype(np.intp), make_lock=threading.RLock)
    store.address_space = slots * SLOT_BYTES
    store.declare(KEYS, fields)
    for shard in range(4):
        store.grant(shard, 1)
    return store


def added(store: KeyedStore, stop: int, step: int = 250) -> Iterator[int]:
    """Add keys, with their numbers as counts."""
    session = store.session(1)
    for first in range(store.slots.used, stop, step):
        keys = np.arange(first, min(first + step, stop))
        located = session.locate(pa.record_batch({"k": keys}), ["k"], keys.astype(np.uint64))
        session.apply(located, lambda current, keys=keys: [keys, *current[1:]])
        yield store.slots.capacity


def contents(store: KeyedStore) -> tuple[list[int], list[list[object]]]:
    keys, values = store.rows()
    return keys["k"].to_pylist(), [column.tolist() for column in values]


def test_slots_are_extended_where_they_are_and_have_initial_values():
    store = store_of(20_000)
    places, capacities = set(), []
    for capacity in added(store, 10_000):
        capacities.append(capacity)
        if capacity > 2_048:
            places.add((store.slots.marks.ctypes.data, *(column.ctypes.data for column in store.slots.values)))
    assert len(places) == 1
    assert max(np.diff(capacities)) <= 1_024, "the first capacities double, the later ones grow in steps"
    keys, (counts, least, zero, at) = contents(store)
    assert sorted(keys) == sorted(counts) == list(range(10_000))
    assert set(least) == {float("inf")}
    assert np.signbit(zero).all(), "a negative zero is not the zero of memory that was never written"
    assert set(at) == {np.array(-1, "M8[us]").item()}


def test_full_room_is_followed_by_longer_arrays():
    store, without = store_of(3_000), store_of(0)
    for one in (store, without):
        for _ in added(one, 9_000):
            pass
    assert without.slots._room is None
    assert contents(store) == contents(without)


@pytest.mark.parametrize("refused", [1, 5])
def test_without_address_space_arrays_are_copied(monkeypatch, refused):
    asked = []

    def some(dtype, length, huge_pages):
        asked.append(length)
        return None if len(asked) % refused == 0 else reserved_array(dtype, length, huge_pages)

    monkeypatch.setattr(slots_module, "reserved_array", some)
    store = store_of(20_000)
    for _ in added(store, 9_000):
        pass
    assert asked
    assert store.slots._room is None
    assert sorted(contents(store)[0]) == list(range(9_000))


@pytest.mark.parametrize(
    "field", [Field("any", np.dtype(object), None), Field("list", np.dtype(np.int64), ragged=True)]
)
def test_objects_and_lists_are_not_in_reserved_arrays(field):
    slots = SlotArrays([field])
    slots.grow(5_000, slots.prepared(5_000, 2**30))
    assert not slots.extends(5_001)


def test_tasks_go_on_while_slots_are_extended():
    store = store_of(20_000)
    for _ in added(store, 4_000):
        pass
    other = store.session(2)
    # A task in the middle of an update holds its gate.
    with other.gate:
        for capacity in added(store, 6_000):
            assert capacity > 4_000
    assert sorted(contents(store)[0]) == list(range(6_000))


def test_extension_waits_for_tasks_while_state_is_copied():
    store = store_of(20_000)
    for _ in added(store, 4_000):
        pass
    with store.still():
        store.slots.begin_copy()
    other, done = store.session(2), threading.Event()

    def add() -> None:
        for _ in added(store, 6_000):
            pass
        done.set()

    with other.gate:
        thread = threading.Thread(target=add)
        thread.start()
        assert not done.wait(0.2)
        before = store.slots.uncopied
    thread.join(10)
    assert done.is_set()
    assert store.slots.uncopied is not before
    assert store.slots.uncopied[:6_000].all()


def test_growth_is_counted_by_what_is_allocated():
    slots = SlotArrays(FIELDS)
    doubled = slots.bytes_to_grow(4_096)
    slots.grow(4_096, slots.prepared(4_096, 2**30))
    assert slots.allocated_bytes == doubled
    assert slots.bytes_to_grow(4_097) == 100 * SLOT_BYTES


def test_packed_state_is_in_reserved_arrays_again():
    store = store_of(60_000)
    session = store.session(1)
    for _ in added(store, 20_000):
        pass
    place = store.slots.marks.ctypes.data
    store.remove(np.arange(3))
    session.tidy()
    assert store.slots.marks.ctypes.data != place
    assert store.slots.extends(30_000)


@pytest.mark.parametrize("huge", [False, True])
def test_reserved_array_is_zero_and_survives_its_parts(huge):
    array = reserved_array(np.dtype(np.int64), HUGE_FROM, huge)
    assert array is not None
    part = array[-3:]
    array[:] = 7
    del array
    assert part.tolist() == [7, 7, 7]


def test_reserved_array_that_does_not_fit_is_refused():
    assert reserved_array(np.dtype(np.int64), 2**60) is None
    assert reserved_array(np.dtype(np.int64), 0) is None


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_nothing_is_reserved_where_address_space_is_limited(kind):
    """A process that reserved most of it would lack it for all else, although most of its memory is free."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (2**46 if hard == resource.RLIM_INFINITY else hard, hard))
    try:
        assert reserved_array(np.dtype(np.int64), 1 << 20) is None
    finally:
        resource.setrlimit(kind, (soft, hard))


def test_nothing_is_reserved_where_address_space_counts_as_memory(monkeypatch, tmp_path):
    mode = tmp_path / "overcommit_memory"
    monkeypatch.setattr(reserved_array_module, "_OVERCOMMIT", mode)
    mode.write_text("2\n")
    assert reserved_array(np.dtype(np.int64), 1 << 20) is None
    mode.write_text("1\n")
    assert reserved_array(np.dtype(np.int64), 1 << 20) is not None


def test_allocated_bytes_are_those_of_slots_and_of_the_index():
    store = store_of(10_000)
    for stop in (1_000, 10_000, 20_000):
        for _ in added(store, stop):
            pass
        index = store.make_index()
        index.insert(store.slots.hashes[:stop], np.arange(stop))
        # A table of the index that is being replaced is there besides.
        of_index = store.allocated_bytes - store.slots.allocated_bytes
        assert index.nbytes <= of_index <= 1.5 * index.nbytes
        assert of_index > 24 * stop
