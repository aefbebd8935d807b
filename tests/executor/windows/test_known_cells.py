"""Rows are located in the cells of their keys as the store locates them, also while the slots move."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.executor.windows.known_cells import KnownCells
from dask_elastic.routing.hashing import check_columns, hash_columns
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state import KeyedStore
from dask_elastic.topology.aggregates.field import Field

GROUPS = 8
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(-3, 3)), min_size=1, max_size=30), min_size=1, max_size=6
)


@pytest.fixture(params=[pa.int64(), pa.string()], ids=str)
def key_type(request):
    return request.param


def make_store(key_type) -> KeyedStore:
    store = KeyedStore(GROUPS, lambda hashes: (hashes % GROUPS).astype(int))
    store.declare(pa.schema({"key": key_type}), [Field("rows", np.dtype(np.int64), 0)])
    for shard in range(GROUPS):
        store.grant(shard, 1)
    return store


def keys_of(batch, key_type) -> pa.RecordBatch:
    # Strings of more than seven bytes have checks.
    texts = [f"the key {key}" if pa.types.is_string(key_type) else key for key, _ in batch]
    return pa.record_batch({"key": pa.array(texts, key_type)})


def counted(store, session, known, batch, key_type) -> None:
    """Count the rows of each key and cell; the numbers of cells repeat if a cell has several rows."""
    rows = keys_of(batch, key_type)
    numbers = np.array([number for _, number in batch])
    cells = np.arange(len(batch))
    hashes, checks = hash_columns(rows, ["key"]), check_columns(rows, ["key"])
    found = known.locate(rows, ["key"], hashes, checks, numbers, cells)
    located = found.located
    ordinals = located.grouping.ordinals
    assert found.numbers.take(ordinals).tolist() == numbers.tolist()
    assert found.identities()[0].take(ordinals).tolist() == hashes.tolist()
    session.apply(located, lambda current: [current[0] + located.grouping.sizes])


def check(store, batches, key_type) -> None:
    """Compare the counts with those that the identities of all parts lead to."""
    session = store.session(1)
    wanted: dict[tuple[int, int], int] = {}
    for batch in batches:
        for pair in batch:
            wanted[pair] = wanted.get(pair, 0) + 1
    pairs = [*wanted]
    rows, salts = keys_of(pairs, key_type), np.array([number for _, number in pairs])
    hashes, checks = hash_columns(rows, ["key"]), check_columns(rows, ["key"])
    located = session.locate(rows, ["key"], part_hashes(hashes, salts, GROUPS), part_checks(checks, salts, len(hashes)))
    (counts,) = session.gather(located)
    assert counts[located.grouping.ordinals].tolist() == [*wanted.values()]
    assert len(store) == len(wanted)


@given(batches=BATCHES)
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_rows_are_located_by_key_and_cell(kind, batches):
    store = make_store(kind)
    session = store.session(1)
    known = KnownCells(store, session, GROUPS)
    for batch in batches:
        counted(store, session, known, batch, kind)
    check(store, batches, kind)


@given(batches=BATCHES)
def test_rows_are_located_although_the_slots_move_while_cells_are_added(batches):
    """Another task packs the store after this one has read its tables, and before it has added cells."""
    kind = pa.int64()
    store = make_store(kind)
    session = store.session(1)
    known = KnownCells(store, session, GROUPS)
    real, left = store.admit, [3, 2, 1]

    def unused(count: int) -> None:
        # Keys without state, whose slots leave when the store is packed, so that later slots have other numbers.
        rows = pa.record_batch({"key": np.arange(count) - 1_000 * count})
        session.locate(rows, ["key"], hash_columns(rows, ["key"]))

    def admit(*given):
        if left and len(store) > left[-1]:
            left.pop()
            store._pack()
        return real(*given)

    unused(3)
    for number, batch in enumerate(batches):
        store.admit = admit
        counted(store, session, known, batch, kind)
        del store.admit
        unused(4 + number)
    check(store, batches, kind)


def test_tables_and_keys_begin_again_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("dask_elastic.executor.windows.known_cells.MOST_KEYS", 10)
    monkeypatch.setattr("dask_elastic.executor.windows.known_cells.MOST_TABLES", 2)
    random = np.random.default_rng(3)
    batches = [
        [*zip(random.integers(0, 2_000, 50).tolist(), random.integers(0, 9, 50).tolist(), strict=True)]
        for _ in range(60)
    ]
    store = make_store(pa.int64())
    session = store.session(1)
    known = KnownCells(store, session, GROUPS)
    for batch in batches:
        counted(store, session, known, batch, pa.int64())
    check(store, batches, pa.int64())


def counted_in_one(store, session, known, batch) -> None:
    """Count rows that are all in one cell."""
    rows = keys_of(batch, pa.int64())
    number = np.array([batch[0][1]])
    located = known.locate(rows, ["key"], hash_columns(rows, ["key"]), None, number, None).located
    session.apply(located, lambda current: [current[0] + located.grouping.sizes])


def test_keys_that_do_not_come_again_are_forgotten_and_others_are_not(monkeypatch):
    monkeypatch.setattr("dask_elastic.executor.windows.known_cells.FEW_ENTRIES", 4_096)
    store = make_store(pa.int64())
    session = store.session(1)
    new, same = KnownCells(store, session, GROUPS), KnownCells(store, session, GROUPS)
    batches, most = [], 0
    for cell in range(200):
        batches.append([(100 * cell + key, cell) for key in range(100)])
        counted_in_one(store, session, new, batches[-1])
        most = max(most, new.count)
        batches.append([(-1 - key, cell) for key in range(1_500)])
        counted_in_one(store, session, same, batches[-1])
    check(store, batches, pa.int64())
    assert most < 3_000, "of 20,000 keys in all"
    assert new.count <= most
    assert sum(map(len, new._tables.values())) <= 64 * 2_048
    assert same.count == 1_500


def test_tables_made_for_many_keys_do_not_stay_large_when_there_are_few(monkeypatch):
    monkeypatch.setattr("dask_elastic.executor.windows.known_cells.FEW_ENTRIES", 4_096)
    store = make_store(pa.int64())
    session = store.session(1)
    known = KnownCells(store, session, GROUPS)
    batches = [[(key, 0) for key in range(10_000)], *([(key, cell) for key in range(5)] for cell in range(1, 140))]
    for batch in batches:
        counted_in_one(store, session, known, batch)
    check(store, batches, pa.int64())
    assert known.count == 5
    assert sum(map(len, known._tables.values())) <= 64 * 1_024


def test_rows_are_grouped_for_rehearsals_although_the_tables_begin_again_or_grow():
    store = make_store(pa.int64())
    session = store.session(1)
    known = KnownCells(store, session, GROUPS)
    counted_in_one(store, session, known, [(key, 0) for key in range(10_000)])
    known._has_old_keys = True
    for count in (20, 40, 3_000):
        rows = keys_of([(key, 0) for key in range(count)] * 2, pa.int64())
        cells = np.repeat([0, 1], count)
        grouping = known.grouped(hash_columns(rows, ["key"]), None, np.array([3, 4]), cells, by_index=False)
        assert grouping.count == 2 * count, "a group for each key and cell"
        assert sorted(grouping.ordinals.tolist()) == [*range(2 * count)]
