from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.state.index import DirectIndex, GrowingIndex, KeyIndex, NumpyIndex, PandasIndex, choice, make_index
from dask_elastic.state.index import buckets as buckets_module
from dask_elastic.state.index import direct_index as direct_module
from dask_elastic.state.index import growing_index as growing_module
from dask_elastic.state.key_table import KeyTable, derived, distinct_keys


def direct_index() -> KeyIndex:
    return DirectIndex(NumpyIndex())


both = pytest.mark.parametrize("make", [NumpyIndex, PandasIndex, GrowingIndex, direct_index])
words = st.integers(0, 2**64 - 1) | st.integers(0, 8) | st.integers(2**64 - 8, 2**64 - 1)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@both
@settings(deadline=None)
@given(chunks=st.lists(st.lists(words, max_size=30), max_size=5), absent=st.lists(words, max_size=20))
def test_index_finds_the_same_slots_as_a_dict(
    make: Callable[[], KeyIndex], chunks: list[list[int]], absent: list[int]
) -> None:
    index = make()
    model: dict[int, int] = {}
    for chunk in chunks:
        new = [word for word in dict.fromkeys(chunk) if word not in model]
        slots = np.arange(len(model), len(model) + len(new))
        index.insert(array(new), slots)
        model.update(zip(new, slots.tolist(), strict=True))
        wanted = [*chunk, *absent, *model]
        found = index.lookup(array(wanted))
        assert found.dtype == np.intp
        assert found.tolist() == [model.get(word, -1) for word in wanted]
        assert len(index) == len(model)
        assert index.nbytes > 0


def test_table_that_grows_again_before_all_have_moved_loses_none() -> None:
    index, hashes = NumpyIndex(), np.arange(30_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    first = 0
    # The second part makes a table of twice the size, and the third one is too large for that.
    for stop in (8_192, 8_200, 30_000):
        index.insert(hashes[first:stop], np.arange(first, stop))
        first = stop
        assert index.lookup(hashes[:stop]).tolist() == [*range(stop)]


@settings(deadline=None)
@given(chunks=st.lists(st.lists(words | st.integers(0, 60).map(lambda bucket: bucket << 52), max_size=30), max_size=5))
def test_large_batches_are_found_in_the_direct_table(chunks: list[list[int]]) -> None:
    with mock.patch.object(direct_module, "MANY_ROWS", 1):
        index = DirectIndex(NumpyIndex())
        model: dict[int, int] = {}
        for chunk in chunks:
            wanted = array([*chunk, 0, 1 << 63, *chunk])
            assert index.lookup(wanted).tolist() == [model.get(word, -1) for word in wanted.tolist()]
            new = [word for word in dict.fromkeys(chunk) if word not in model]
            slots = np.arange(len(model), len(model) + len(new))
            index.insert(array(new), slots)
            model.update(zip(new, slots.tolist(), strict=True))
            for _ in range(2):
                assert index.lookup(wanted).tolist() == [model.get(word, -1) for word in wanted.tolist()]


def test_direct_table_is_asked_first_up_to_a_number_of_keys() -> None:
    inner = NumpyIndex()
    index = DirectIndex(inner)
    hashes = np.arange(1, 5_001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    index.insert(hashes, np.arange(5_000))
    index.lookup(hashes)
    with mock.patch.object(inner, "lookup", wraps=inner.lookup) as lookup:
        assert index.lookup(hashes).tolist() == [*range(5_000)]
        assert sum(len(call.args[0]) for call in lookup.mock_calls) < 1_500
        lookup.reset_mock()
        with mock.patch.object(direct_module, "MOST_KEYS", 4_999):
            assert index.lookup(hashes).tolist() == [*range(5_000)]
        assert len(lookup.mock_calls[0].args[0]) == 5_000


@both
def test_index_grows_and_accepts_read_only_arrays(make: Callable[[], KeyIndex]) -> None:
    index = make()
    hashes = np.random.default_rng(1).permutation(2**17)[:100_000].astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    for start in range(0, len(hashes), 9_000):
        part = hashes[start : start + 9_000]
        index.insert(part, np.arange(start, start + len(part)))
    hashes.flags.writeable = False
    assert (index.lookup(hashes) == np.arange(len(hashes))).all()
    assert (index.lookup(hashes + np.uint64(1)) == -1).all()


@pytest.mark.parametrize("bucket", [0, 700, 1023])
def test_numpy_index_finds_hashes_that_want_one_bucket(bucket: int) -> None:
    inverse = pow(buckets_module._SPREAD, -1, 2**64)
    # All have the same first of 1,024 buckets; from the last one they continue in the first.
    hashes = array([((bucket << 54) + number) * inverse % 2**64 for number in range(300)])
    index = NumpyIndex()
    index.insert(hashes[:200], np.arange(200))
    expected = [*range(200), *[-1] * 100]
    assert index.lookup(hashes).tolist() == expected
    assert [int(index.lookup(hashes[row : row + 1])[0]) for row in range(300)] == expected


def test_make_index_uses_pandas_only_where_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    assert isinstance(make_index(), GrowingIndex)
    monkeypatch.setattr(pd.__spec__, "_initializing", True, raising=False)
    assert isinstance(make_index(), NumpyIndex), "another thread imports it"
    monkeypatch.delitem(sys.modules, "pandas")
    assert isinstance(make_index(), NumpyIndex)
    assert "pandas" not in sys.modules


def test_make_index_without_pandas_table_uses_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_index(), GrowingIndex)
    monkeypatch.setattr(choice, "_pandas_behaves", lambda: False)
    monkeypatch.setattr(choice, "_fastest", choice._fastest.__wrapped__)
    assert isinstance(make_index(), NumpyIndex)


def test_pandas_check_with_changed_table_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choice._pandas_behaves()
    monkeypatch.setattr("pandas._libs.hashtable.Int64HashTable", lambda: SimpleNamespace())
    assert not choice._pandas_behaves()


@both
@settings(deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40), derive=st.booleans())
def test_key_table_with_colliding_hashes_finds_exact_keys(
    make: Callable[[], KeyIndex], pairs: list[tuple[int, int]], derive: bool
) -> None:
    if derive:
        # Keys whose hash is the one derived for another key when that key's own hash is occupied.
        pairs = pairs + [(int(derived(array([h]), array([c]))[0]), c) for h, c in pairs]
    table = KeyTable(make)
    identity = SimpleNamespace(hashes=np.zeros(200, np.uint64), checks=np.zeros(200, np.uint64))
    known: dict[tuple[int, int], int] = {}
    for start in range(0, len(pairs), 7):
        chunk = pairs[start : start + 7]
        hashes, checks = array([pair[0] for pair in chunk]), array([pair[1] for pair in chunk])
        first, ordinals = distinct_keys(hashes, checks)
        assert [chunk[row] for row in first[ordinals]] == chunk
        assert len(first) == len(set(chunk))
        found = table.find(hashes, checks, identity, verify=True)
        assert found.tolist() == [known.get(pair, -1) for pair in chunk]
        new = first[found[first] < 0]
        slots = np.arange(len(known), len(known) + len(new))
        identity.hashes[slots], identity.checks[slots] = hashes[new], checks[new]
        table.add(hashes[new], checks[new], slots)
        known.update({chunk[row]: int(slot) for row, slot in zip(new, slots, strict=True)})
        everything = list(known)
        again = table.find(array([p[0] for p in everything]), array([p[1] for p in everything]), identity, verify=True)
        assert again.tolist() == list(known.values())


def test_numpy_index_grows_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    place, placed = buckets_module.Buckets.place, []

    def counted(buckets: buckets_module.Buckets, hashes: np.ndarray, numbers: np.ndarray) -> None:
        placed.append(len(hashes))
        place(buckets, hashes, numbers)

    monkeypatch.setattr(buckets_module.Buckets, "place", counted)
    hashes = np.random.default_rng(2).integers(0, 2**64, 40_000, dtype=np.uint64)
    index, step, both_tables = NumpyIndex(), 40, 0
    for first in range(0, len(hashes), step):
        placed.clear()
        index.insert(hashes[first : first + step], np.arange(first, first + step))
        assert sum(placed) <= 2_048, "entries move in steps"
        both_tables += index._before is not None
        some = np.arange(0, first + step, 17)
        assert (index.lookup(hashes[some]) == some).all()
        assert index.lookup(hashes[first + step - 3 : first + step + 3])[:3].tolist() == [*range(first + step)][-3:]
    assert both_tables > 50, "lookups with two tables are tested"
    assert (index.lookup(hashes) == np.arange(len(hashes))).all()
    assert (index.lookup(hashes + np.uint64(1)) == -1).all()


def test_memory_of_next_table_is_allocated_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    index, hashes = NumpyIndex(), np.random.default_rng(2).integers(0, 2**64, 40_000, dtype=np.uint64)
    used = 0
    for first in range(0, len(hashes), 40):
        before = index._buckets
        index.insert(hashes[first : first + 40], np.arange(first, first + 40))
        if index._buckets is not before:
            used += 1
            assert index._buckets._touched == index._buckets.nbytes
    assert used > 5


def test_keys_move_from_pandas_to_numpy_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_module, "MOST_IN_PANDAS", 5_000)
    insert, inserted = NumpyIndex.insert, []

    def counted(index: NumpyIndex, hashes: np.ndarray, slots: np.ndarray) -> None:
        inserted.append(len(hashes))
        insert(index, hashes, slots)

    monkeypatch.setattr(NumpyIndex, "insert", counted)
    hashes = np.random.default_rng(2).integers(0, 2**64, 12_000, dtype=np.uint64)
    index, both_tables = GrowingIndex(), 0
    for first in range(0, len(hashes), 40):
        inserted.clear()
        index.insert(hashes[first : first + 40], np.arange(first, first + 40))
        assert sum(inserted) <= 40 + 512
        both_tables += index._small is not None and index._large is not None
        assert len(index) == first + 40
        assert (index.lookup(hashes[: first + 40]) == np.arange(first + 40)).all()
        assert (index.lookup(hashes[first + 40 :][:30]) == -1).all()
    assert both_tables > 5
    assert index._small is None


def test_many_keys_at_once_need_no_table_of_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_module, "MOST_IN_PANDAS", 100)
    index = GrowingIndex()
    index.insert(array([*range(500)]), np.arange(500))
    assert index._small is None
    assert index.lookup(array([499, 500])).tolist() == [499, -1]
