from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.state import KeyedStore, NumpyIndex, PandasIndex, Session, StateRows, decode, encode
from dask_elastic.state.index import KeyIndex
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import SchemaMismatch, StateError

pytestmark = pytest.mark.usefixtures("storage")

SHARDS = 4
KEYS = pa.schema({"key": pa.int64()})
FIELDS = (Field("count", np.dtype(np.int64), 0), Field("least", np.dtype(np.float64), np.nan))

indexes = pytest.mark.parametrize("make_index", [NumpyIndex, PandasIndex])


def shard_of(hashes: np.ndarray) -> np.ndarray:
    return (hashes % np.uint64(SHARDS)).astype(np.intp)


def make_store(make_index: Callable[[], KeyIndex] = PandasIndex, track_dirty: bool = False) -> KeyedStore:
    store = KeyedStore(SHARDS, shard_of, track_dirty=track_dirty, make_index=make_index)
    store.declare(KEYS, FIELDS)
    for shard in range(SHARDS):
        store.grant(shard, 0)
    return store


def hashed(keys: list[int]) -> np.ndarray:
    return np.array(keys, dtype=np.int64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def count(session: Session, keys: list[int], hashes: np.ndarray | None = None, check: np.ndarray | None = None) -> None:
    rows = pa.record_batch({"key": pa.array(keys, pa.int64())})
    located = session.locate(rows, ["key"], hashed(keys) if hashes is None else hashes, check)
    sizes = located.grouping.sizes
    session.apply(located, lambda current: [current[0] + sizes, np.fmin(current[1], 1.0)])


def counts(store: KeyedStore, shards: list[int] | None = None) -> dict[int, int]:
    keys, values = store.rows(shards)
    found = keys["key"].to_pylist()
    assert len(set(found)) == len(found)
    return dict(zip(found, values[0].tolist(), strict=True))


def copy_of(store: KeyedStore) -> KeyedStore:
    copied = KeyedStore(SHARDS, shard_of)
    batch = store.extract()
    assert batch is not None
    copied.install(batch)
    return copied


@indexes
@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-20, 20), max_size=40), max_size=6))
def test_store_counts_equal_collections_counter(make_index: Callable[[], KeyIndex], batches: list[list[int]]) -> None:
    store = make_store(make_index)
    session = store.session(0)
    expected: Counter[int] = Counter()
    for batch in batches:
        count(session, batch)
        expected.update(batch)
        assert counts(store) == dict(expected)
        assert len(store) == len(expected)
    assert counts(copy_of(store)) == dict(expected)


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), max_size=40))
def test_locate_groups_rows_by_key(keys: list[int]) -> None:
    session = make_store().session(0)
    located = session.locate(pa.record_batch({"key": pa.array(keys, pa.int64())}), ["key"], hashed(keys))
    assert [keys[row] for row in located.first[located.grouping.ordinals]] == keys
    assert len(located) == len(set(keys)) == len(set(located.slots.tolist())) == located.grouping.count


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.lists(st.integers(0, 60), max_size=60))
def test_large_batch_is_grouped_by_counting_if_there_are_fewer_slots_than_rows(
    keys: list[int], others: list[int]
) -> None:
    store = make_store()
    session = store.session(0)
    count(session, others)
    with mock.patch("dask_elastic.state.session.MANY_ROWS", 1):
        located = session.locate(pa.record_batch({"key": pa.array(keys, pa.int64())}), ["key"], hashed(keys))
    grouping = located.grouping
    assert len(located) == grouping.count == len(set(keys))
    assert [keys[row] for row in located.first[grouping.ordinals]] == keys
    assert store.slots.hashes[located.slots][grouping.ordinals].tolist() == hashed(keys).tolist()
    assert grouping.sizes.tolist() == np.bincount(grouping.ordinals).tolist()


@pytest.mark.parametrize("rows", [5, 20], ids=["few", "many"])
@pytest.mark.parametrize("many_rows", [4_096, 1], ids=["grouped", "counted"])
def test_keys_that_do_not_repeat_stay_in_the_order_of_rows(rows: int, many_rows: int) -> None:
    store = make_store()
    session = store.session(0)
    count(session, list(range(rows)))
    keys = list(range(rows))[::-1]
    with mock.patch("dask_elastic.state.session.MANY_ROWS", many_rows):
        located = session.locate(pa.record_batch({"key": pa.array(keys, pa.int64())}), ["key"], hashed(keys))
    assert store.slots.hashes[located.slots].tolist() == hashed(keys).tolist()
    assert located.first.tolist() == located.grouping.ordinals.tolist() == list(range(rows))


@indexes
@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), min_size=1, max_size=12), max_size=6),
    st.booleans(),
)
def test_keys_with_equal_hashes_have_separate_state(
    make_index: Callable[[], KeyIndex], batches: list[list[tuple[int, int]]], other_session: bool
) -> None:
    store = make_store(make_index)
    sessions = [store.session(0)]
    expected: Counter[int] = Counter()
    for number, batch in enumerate(batches):
        if other_session and number % 2:
            sessions = [store.session(0)]
        hashes = np.array([pair[0] for pair in batch], dtype=np.uint64)
        check = np.array([pair[1] for pair in batch], dtype=np.uint64)
        keys = [10 * pair[0] + pair[1] for pair in batch]
        # Rows without a check have check zero.
        plain = number % 3 == 2 and not check.any()
        count(sessions[0], keys, hashes, None if plain else check)
        expected.update(keys)
        assert counts(store) == dict(expected)
        assert counts(copy_of(store)) == dict(expected)


def test_batch_without_checks_finds_only_keys_with_check_zero() -> None:
    store = make_store()
    session = store.session(0)
    one, two = np.array([4], dtype=np.uint64), np.array([1], dtype=np.uint64)
    count(session, [100], one, two)
    count(session, [200], one)
    count(session, [200], one)
    count(session, [100], one, two)
    assert counts(store) == {100: 2, 200: 2}


def test_session_on_shard_of_another_task_raises() -> None:
    store = make_store()
    session, other = store.session(0), store.session(1)
    count(session, list(range(20)))
    shard = int(shard_of(hashed([3]))[0])
    with pytest.raises(StateError, match=f"task 1 touched shard {shard}, which task 0 owns"):
        count(other, [3])
    with pytest.raises(StateError, match=f"shard {shard} is owned by task 0"):
        store.grant(shard, 1)
    store.revoke(shard)
    with pytest.raises(StateError, match="no task owns"):
        count(session, [3])
    with pytest.raises(StateError, match="no task owns"):
        count(session, [next(k for k in range(100, 200) if shard_of(hashed([k]))[0] == shard)])
    store.grant(shard, 1)
    count(other, [3])
    assert counts(store)[3] == 2
    assert len(store) == 20
    with pytest.raises(StateError, match="no shard 4"):
        store.grant(4, 0)


def test_apply_with_failing_update_changes_nothing() -> None:
    store = make_store()
    session = store.session(0)
    count(session, [1])
    rows = pa.record_batch({"key": [1, 2]})
    located = session.locate(rows, ["key"], hashed([1, 2]))
    faults: list[tuple[Callable[..., Any], str | None]] = [
        (lambda current: 1 // 0, None),
        (lambda current: [current[0]], "1 arrays for the 2 fields 'count', 'least'"),
        (lambda current: [current[0][:1], current[1]], "'count'.*shape"),
        (lambda current: [current[0] + 1, current[1].astype(object)], "'least' is float64; object"),
        (lambda current: [current[0] + 0.5, current[1]], "'count' is int64; float64"),
    ]
    for update, message in faults:
        with pytest.raises(ZeroDivisionError if message is None else StateError, match=message):
            session.apply(located, update)
        assert counts(store) == {1: 1}


def test_declare_again_with_another_shape_raises() -> None:
    store = make_store()
    store.declare(KEYS, FIELDS)
    store.declare(KEYS, [FIELDS[0], Field("least", np.dtype("f8"), float("nan"))])
    with pytest.raises(SchemaMismatch, match="string"):
        store.declare(pa.schema({"key": pa.string()}), FIELDS)
    with pytest.raises(SchemaMismatch, match="missing fields: Field\\('least'"):
        store.declare(KEYS, FIELDS[:1])
    with pytest.raises(SchemaMismatch, match="another order"):
        store.declare(KEYS, FIELDS[::-1])
    with pytest.raises(SchemaMismatch, match="distinct names"):
        KeyedStore(1, shard_of).declare(KEYS, [FIELDS[0], FIELDS[0]])


def test_undeclared_store_is_empty_and_refuses_rows() -> None:
    store = KeyedStore(SHARDS, shard_of)
    session = store.session(0)
    assert store.extract() is None
    assert store.state_bytes() == 0
    assert len(store) == 0
    assert store.key_schema is None
    with pytest.raises(StateError, match="declare"):
        store.rows()
    with pytest.raises(StateError, match="declare"):
        count(session, [1])


def test_extract_dirty_only_returns_keys_changed_since_last_extract() -> None:
    store = make_store(track_dirty=True)
    session = store.session(0)
    count(session, [1, 2, 3])
    home = KeyedStore(SHARDS, shard_of, track_dirty=True)
    first = store.extract(dirty_only=True)
    assert first is not None
    home.install(first, dirty=True)
    count(session, [2, 4])
    second = store.extract(dirty_only=True, clear=False)
    assert second is not None
    assert sorted(decode(second).keys["key"].to_pylist()) == [2, 4]
    third = store.extract([0, 1, 2, 3], dirty_only=True)
    assert third is not None
    home.install(third)
    assert counts(home) == counts(store) == {1: 1, 2: 2, 3: 1, 4: 1}
    nothing = store.extract(dirty_only=True)
    assert nothing is not None
    assert nothing.num_rows == 0
    home.install(nothing)
    dirty = home.extract(dirty_only=True)
    assert dirty is not None
    assert sorted(decode(dirty).keys["key"].to_pylist()) == [1, 3]


def test_dropped_shard_can_be_installed_again() -> None:
    store = make_store()
    session = store.session(0)
    count(session, list(range(50)))
    sizes = store.shard_bytes()
    assert len(sizes) == SHARDS
    assert store.state_bytes() == sizes.sum() >= 50 * 16
    dropped = counts(store, [1])
    saved = store.extract([1])
    store.drop([1])
    assert counts(store, [1]) == {}
    assert len(store) == 50 - len(dropped)
    assert store.shard_bytes()[1] == 0
    returning = list(dropped)[:3]
    count(session, returning)
    assert counts(store, [1]) == dict.fromkeys(returning, 1)
    least = store.rows([1])[1][1]
    assert least.tolist() == [1.0] * 3
    assert saved is not None
    store.install(saved)
    assert counts(store, [1]) == dropped


@pytest.mark.parametrize(("nbytes", "expected"), [(1, 5), (1 << 20, 1)])
def test_state_that_is_taken_out_leaves_tombstones_for_the_next_delta(nbytes: int, expected: int) -> None:
    store = make_store(track_dirty=True)
    session = store.session(0)
    count(session, [*range(20), 3])
    store.extract(dirty_only=True)
    before = counts(store)
    of_shard = counts(store, [1])
    portions = [*store.portions_of(1, nbytes)]
    assert len(portions) == expected
    assert counts(store) == {key: seen for key, seen in before.items() if key not in of_shard}
    delta = store.extract(dirty_only=True)
    assert delta is not None
    assert sorted(delta["key"].to_pylist()) == sorted(of_shard)
    assert delta["__deleted"].to_pylist() == [True] * len(of_shard)
    for portion in portions:
        store.install(portion)
    assert counts(store) == before


@indexes
def test_packing_keeps_live_keys_and_located_batches_valid(make_index: Callable[[], KeyIndex]) -> None:
    store = make_store(make_index)
    session = store.session(0)
    keys = list(range(20_000))
    count(session, keys)
    kept = counts(store, [2])
    rows = pa.record_batch({"key": keys[:9]})
    located = session.locate(rows, ["key"], hashed(keys[:9]))
    before = store.slots.used
    store.drop([0, 1, 3])
    assert store.slots.used < before / 2
    assert counts(store) == kept
    # Keys located before the packing are located again.
    session.apply(located, lambda current: [current[0] + 5, current[1]])
    for key in keys[:9]:
        assert counts(store)[key] == (6 if key in kept else 5)
    count(session, keys)
    assert sum(counts(store).values()) == len(keys) + len(kept) + 5 * 9


@pytest.mark.parametrize("tracked", [False, True])
def test_slots_whose_tombstones_arrive_are_freed_without_a_task_at_home(tracked: bool) -> None:
    def nothing(values: list[Any], length: int, now: float) -> tuple[list[Any], np.ndarray]:
        return values, np.zeros(length, np.bool_)

    remote, home = make_store(track_dirty=True), make_store(track_dirty=tracked)
    session = remote.session(0)
    used: list[int] = []
    keys = 10_000
    for turn in range(6):
        count(session, [*range(turn * keys, (turn + 1) * keys)])
        for deleting in (False, True):
            if deleting:
                session.sweep(0, remote.slots.used, nothing, 0.0)
            changed = remote.extract(dirty_only=True)
            assert changed is not None
            home.install(changed, dirty=home.track_dirty)
        if tracked:
            home.cut(lambda changed, live: ())
        used.append(home.slots.used)
        session.tidy()
    assert len(home) == 0
    assert max(used) <= 3 * keys, used


def test_closed_or_replaced_session_raises() -> None:
    store = make_store()
    old = store.session(0)
    new = store.session(0)
    with pytest.raises(StateError, match="task 0 is closed"):
        count(old, [1])
    count(new, [1])
    new.close()
    with pytest.raises(StateError, match="closed"):
        count(new, [1])
    count(store.session(0), [1])
    assert counts(store) == {1: 2}


def test_extract_and_install_preserve_strings_dictionaries_and_objects() -> None:
    fields = (Field("blob", np.dtype(object), None), Field("when", np.dtype("M8[us]"), "NaT"))
    store = KeyedStore(SHARDS, shard_of)
    encoded = pa.dictionary(pa.int32(), pa.string())
    store.declare(pa.schema({"name": encoded, "n": pa.int32()}), fields)
    for shard in range(SHARDS):
        store.grant(shard, 3)
    session = store.session(3)
    batches: list[list[str | None]] = [["a", "b", None], ["b", "c", "a"]]
    for number, words in enumerate(batches):
        names = pa.array(words).dictionary_encode()
        rows = pa.record_batch({"n": pa.array([1, 1, 1], pa.int32()), "name": names, "other": [0, 0, 0]})
        hashes = np.array([0 if word is None else ord(word) for word in words], dtype=np.uint64)
        located = session.locate(rows, ["name", "n"], hashes, hashes)
        new = np.empty(3, dtype=object)
        new[:] = [{"batch": number}] * 3
        session.scatter(located, [new, np.full(3, number, "M8[us]")])
    assert store.state_bytes() > 0
    copied = copy_of(store)
    assert copied.key_schema == pa.schema({"name": pa.string(), "n": pa.int32()})
    assert copied.fields == fields
    keys, (blobs, when) = copied.rows()
    assert when.dtype == "M8[us]"
    found = dict(zip(keys["name"].to_pylist(), zip(blobs, when.astype(int), strict=True), strict=True))
    late, early = ({"batch": 1}, 1), ({"batch": 0}, 0)
    assert found == {"a": late, "b": late, "c": late, None: early}


@pytest.mark.parametrize(
    "values", [["a", None, ""], ["a", "\ud800", None], [None, None, None], [b"a", None, 1], ["a", 3, None]]
)
def test_encoded_objects_are_decoded_unchanged(values: list[object]) -> None:
    column = np.empty(3, dtype=object)
    column[:] = values
    numbers = np.arange(3, dtype=np.uint64)
    keys = pa.record_batch({"key": [0, 1, 2]})
    field = Field("value", np.dtype(object), None)
    shards, deleted = np.zeros(3, np.int32), np.zeros(3, np.bool_)
    encoded = encode(StateRows(numbers, numbers, shards, keys, (field,), [column], deleted))
    assert decode(encoded).values[0].tolist() == values
    assert decode(encoded.slice(1, 1)).values[0].tolist() == values[1:2]


def test_locate_or_install_with_wrong_batch_raises_with_reason() -> None:
    store = make_store()
    session = store.session(0)
    with pytest.raises(StateError, match="check of 1 rows"):
        session.locate(pa.record_batch({"key": [1, 2]}), ["key"], hashed([1, 2]), hashed([1]))
    with pytest.raises(SchemaMismatch, match="'other'"):
        session.locate(pa.record_batch({"other": [1]}), ["key"], hashed([1]))
    with pytest.raises(SchemaMismatch, match="'key' is string, but int64"):
        session.locate(pa.record_batch({"key": ["x"]}), ["key"], hashed([1]))
    with pytest.raises(SchemaMismatch, match="not encoded state"):
        store.install(pa.record_batch({"key": [1]}))
    assert len(store) == 0


def test_many_small_batches_of_new_keys_are_all_counted() -> None:
    store = make_store()
    session = store.session(0)
    for start in range(0, 1200, 2):
        count(session, [start, start + 1])
    assert counts(store) == dict.fromkeys(range(1200), 1)


class Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("this cannot be pickled")


def test_unpicklable_objects_are_kept_in_memory_and_named_on_disk(storage: str) -> None:
    store = KeyedStore(SHARDS, shard_of)
    store.declare(KEYS, [Field("blob", np.dtype(object), None)])
    for shard in range(SHARDS):
        store.grant(shard, 0)
    session = store.session(0)
    rows = pa.record_batch({"key": [1, 2]})
    located = session.locate(rows, ["key"], hashed([1, 2]))
    objects = np.array([Unpicklable(), Unpicklable()], dtype=object)
    if storage == "disk":
        with pytest.raises(StateError, match="Unpicklable cannot be pickled"):
            session.apply(located, lambda current: [objects])
        return
    session.apply(located, lambda current: [objects])
    assert store.state_bytes() > 0
