"""State in files: what memory does not have, full disks, moves to disk while tasks run, and cuts in parts."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.state import KeyedStore, NumpyIndex, Session, decode
from dask_elastic.state.disk import DiskStorage, UnnamedFiles
from dask_elastic.state.disk.blobs import Blobs
from dask_elastic.state.disk.key_file import KeyFile
from dask_elastic.state.disk.mapped_index import MappedIndex
from dask_elastic.state.slots import SlotArrays
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import StateDiskError

SHARDS = 4
KEYS = pa.schema({"key": pa.int64(), "name": pa.string()})
FIELDS = (
    Field("count", np.dtype(np.int64), 0),
    Field("least", np.dtype(np.float64), np.nan),
    Field("note", np.dtype(object), None),
)


@pytest.fixture
def files(state_folder: Path) -> UnnamedFiles:
    return UnnamedFiles(state_folder)


def made(files: UnnamedFiles | None = None, make_lock: Any = threading.Lock) -> KeyedStore:
    store = KeyedStore(SHARDS, lambda hashes: (hashes % np.uint64(SHARDS)).astype(np.intp), make_lock, track_dirty=True)
    if files is not None:
        store.move(DiskStorage(files))
    store.declare(KEYS, FIELDS)
    for shard in range(SHARDS):
        store.grant(shard, 0)
    return store


def count(session: Session, keys: np.ndarray) -> None:
    rows = pa.record_batch({"key": keys, "name": [f"n{key}" for key in keys.tolist()]})
    located = session.locate(rows, ["key", "name"], keys.astype(np.uint64))
    sizes = located.grouping.sizes

    def add(current: list[Any]) -> list[Any]:
        notes = np.array([(note or 0) + int(size) for note, size in zip(current[2], sizes, strict=True)], object)
        return [current[0] + sizes, np.fmin(current[1], 1.0), notes]

    session.apply(located, add)


def counts(store: KeyedStore) -> dict[int, int]:
    keys, (found, least, notes) = store.rows()
    assert notes.tolist() == found.tolist()
    assert (least == 1.0).all()
    assert keys["name"].to_pylist() == [f"n{key}" for key in keys["key"].to_pylist()]
    return dict(zip(keys["key"].to_pylist(), found.tolist(), strict=True))


def expected(batches: list[np.ndarray]) -> dict[int, int]:
    keys, found = np.unique(np.concatenate(batches), return_counts=True)
    return dict(zip(keys.tolist(), found.tolist(), strict=True))


def many(batches: int = 6, keys: int = 20_000) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.integers(0, keys, 5_000) for _ in range(batches)]


def test_files_have_no_names_and_free_their_space_with_the_store(tmp_path: Path) -> None:
    files = UnnamedFiles(tmp_path)
    store = made(files)
    count(store.session(0), np.arange(10_000))
    assert files.nbytes > 10_000 * 40
    assert list(tmp_path.iterdir()) == []
    del store
    gc.collect()
    assert files.nbytes == 0


def test_files_are_made_at_the_same_time_where_none_is_without_a_name_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, unlink, files = os.open, Path.unlink, UnnamedFiles(tmp_path)
    made: list[Any] = []

    def named_only(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *more, **options)

    def late(path: Path, **options: Any) -> None:
        if not made:
            made.append(None)
            # What another thread does meanwhile.
            made.append(files.open())
        unlink(path, **options)

    monkeypatch.setattr(os, "open", named_only)
    monkeypatch.setattr(Path, "unlink", late)
    made.append(files.open())
    for file in made[1:]:
        file.extend(1)
    assert list(tmp_path.iterdir()) == []


def test_state_moves_to_disk_when_it_would_exceed_its_limit(files: UnnamedFiles) -> None:
    store, asked = made(), []

    def overflow(nbytes: int) -> DiskStorage | None:
        asked.append(nbytes)
        return DiskStorage(files) if nbytes > 500_000 else None

    store.overflow = overflow
    session, batches = store.session(0), many()
    for keys in batches:
        count(session, keys)
    assert store.storage.on_disk
    assert asked == sorted(asked)
    assert counts(store) == expected(batches)


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_move_to_disk_while_tasks_update_loses_no_update(files: UnnamedFiles) -> None:
    store = made()
    for shard in range(SHARDS):
        store.revoke(shard)
        store.grant(shard, shard % 2)
    begun = threading.Barrier(3)
    batches: dict[int, list[np.ndarray]] = {}
    failures: list[BaseException] = []

    def work(task: int) -> None:
        random, session = np.random.default_rng(task), store.session(task)
        batches[task] = [random.integers(0, 4_000, 400) * 2 + task for _ in range(60)]
        begun.wait()
        try:
            for keys in batches[task]:
                count(session, keys)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(task,)) for task in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    store.move(DiskStorage(files))
    for thread in threads:
        thread.join()
    assert failures == []
    assert counts(store) == expected([*batches[0], *batches[1]])


def test_full_disk_is_an_error_that_names_the_folder_and_loses_nothing(
    files: UnnamedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(files)
    session, batches = store.session(0), many(2)
    count(session, batches[0])
    allocate, room = os.posix_fallocate, [0]

    def full(descriptor: int, offset: int, length: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    for allowed in range(3):
        room[0] = allowed
        with pytest.raises(StateDiskError, match=f"{files.folder}.*No space left on device.*local-directory"):
            count(session, batches[1])
        assert counts(store) == expected(batches[:1])
    room[0] = 100
    count(session, batches[1])
    assert counts(store) == expected(batches)


def test_cut_without_space_keeps_the_changes_for_the_next_cut(
    files: UnnamedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_elastic.state.disk.deferred_cut._IN_MEMORY", 10)
    store = made(files)
    count(store.session(0), np.arange(100))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StateDiskError):
            store.cut(lambda changed, live: [])
    again = store.cut(lambda changed, live: [])
    assert again is not None
    assert sum(map(len, again)) == 100


def test_cut_of_state_on_disk_is_the_state_at_its_time_although_tasks_go_on(
    files: UnnamedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_elastic.state.disk.deferred_cut._IN_MEMORY", 10)
    monkeypatch.setattr("dask_elastic.state.disk.deferred_cut._AT_ONCE", 100)
    monkeypatch.setattr("dask_elastic.state.disk.kept_rows._BUFFERED_BYTES", 10_000)
    stores = [made(), made(files)]
    batches = many(3, keys=20_000)
    contents = []
    for store in stores:
        session = store.session(0)
        for keys in batches:
            count(session, keys)
        everything = store.cut(lambda changed, live: range(SHARDS))
        assert everything is not None
        later = itertools.cycle(batches)
        copied = _content(everything, lambda: count(session, next(later)[:300]))  # noqa: B023
        count(session, batches[0][:500])
        store.drop([1])
        changes = store.cut(lambda changed, live: [2])
        assert changes is not None
        count(session, batches[1])
        contents.append([copied, _content(changes)])
    assert contents[0][0] == contents[1][0] == {key: (n, False) for key, n in expected(batches).items()}
    assert stores[1].storage.on_disk


def _content(parts: Any, between: Callable[[], None] = lambda: None) -> dict[int, tuple[int, bool]]:
    """Return number and tombstone by key; calls a function after each batch is read."""
    found: dict[int, tuple[int, bool]] = {}
    rows = 0
    for part in parts:
        for batch in part.batches():
            between()
            state = decode(batch)
            keys = state.keys["key"].to_pylist()
            assert state.keys["name"].to_pylist() == [f"n{key}" for key in keys]
            assert (state.hashes == np.array(keys, np.uint64)).all()
            found |= dict(zip(keys, zip(state.values[0].tolist(), state.deleted.tolist(), strict=True), strict=True))
            rows += len(state)
    assert rows == len(found) == sum(map(len, parts))
    assert {kind for part in parts for kind in part.kinds} - {type(None)} == {int}
    return found


@pytest.mark.usefixtures("frequent_switches")
def test_cut_that_is_read_while_tasks_change_its_rows_is_exact(
    files: UnnamedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_elastic.state.disk.deferred_cut._AT_ONCE", 64)
    monkeypatch.setattr("dask_elastic.state.disk.kept_rows._BUFFERED_BYTES", 10_000)
    store = made(files)
    for shard in range(SHARDS):
        store.revoke(shard)
        store.grant(shard, shard % 2)
    sessions = [store.session(task) for task in range(2)]
    for task, session in enumerate(sessions):
        count(session, np.arange(5_000) * 2 + task)
    begun, read = threading.Barrier(3), threading.Event()
    failures: list[BaseException] = []
    done = [0, 0]

    def work(task: int) -> None:
        random = np.random.default_rng(task)
        try:
            while not read.is_set():
                count(sessions[task], random.integers(0, 6_000, 200) * 2 + task)
                done[task] += 1
                if done[task] == 1:
                    begun.wait(60)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(task,)) for task in range(2)]
    parts = store.cut(lambda changed, live: range(SHARDS))
    assert parts is not None
    for thread in threads:
        thread.start()
    try:
        # From here on, both tasks run.
        begun.wait(60)
        copied = _content(parts)
    finally:
        read.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert copied == dict.fromkeys(range(10_000), (1, False))


def test_cut_searches_for_rows_that_are_left_while_tasks_keep_some(files: UnnamedFiles) -> None:
    store = made(files)
    count(store.session(0), np.arange(60_000))
    parts = store.cut(lambda changed, live: range(SHARDS))
    cut = store.slots.cut
    done = threading.Event()

    def keep() -> None:
        while not done.is_set():
            for left in (0, 1):
                cut._left[:] = left

    task = threading.Thread(target=keep)
    task.start()
    try:
        assert max(len(cut._next_of(range(60_000))) for _ in range(3_000)) > 0
    finally:
        done.set()
        task.join()
    assert parts is not None


def test_cut_fails_and_tasks_go_on_when_there_is_no_space_for_rows_that_change(
    files: UnnamedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_elastic.state.disk.kept_rows._BUFFERED_BYTES", 10)
    store = made(files)
    session = store.session(0)
    count(session, np.arange(100))
    parts = store.cut(lambda changed, live: [])
    assert parts is not None

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        count(session, np.arange(50))
    with pytest.raises(StateDiskError, match="No space left"):
        _content(parts)
    count(session, np.arange(50))
    assert counts(store) == {key: 1 + 2 * (key < 50) for key in range(100)}


def test_next_cut_ends_the_one_before_and_one_that_is_dropped_keeps_no_rows(files: UnnamedFiles) -> None:
    store = made(files)
    session = store.session(0)
    count(session, np.arange(100))
    first = store.cut(lambda changed, live: [])
    count(session, np.arange(50))
    second = store.cut(lambda changed, live: range(SHARDS))
    with pytest.raises(StateDiskError, match="next checkpoint has begun"):
        _content(first)
    assert len(_content(second)) == 100
    third = store.cut(lambda changed, live: range(SHARDS))
    assert store.storage.is_copied(store.slots)
    del third
    gc.collect()
    assert not store.storage.is_copied(store.slots)


def test_slots_are_not_packed_while_a_cut_is_read_or_without_space(
    files: UnnamedFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = made(files)
    count(store.session(0), np.arange(10_000))
    parts = store.cut(lambda changed, live: range(SHARDS))
    store.drop([0, 1, 2])
    assert store.slots.used == 10_000
    assert len(_content(parts)) == 10_000

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        store.tidy()
        store.tidy()
    assert len([record for record in caplog.records if "deleted keys are not freed" in record.message]) == 1
    count(store.session(0), np.arange(30_000) * SHARDS + 3)
    assert len(counts(store)) == 30_000


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 60)), max_size=12))
def test_numbers_of_live_and_changed_slots_are_those_of_the_marks(
    state_folder: Path, steps: list[tuple[int, int, int]]
) -> None:
    store = made(UnnamedFiles(state_folder))
    session = store.session(0)
    for kind, shard, number in steps:
        if kind <= 1:
            count(session, np.arange(shard, number))
        elif kind == 2:
            store.drop([shard])
        elif kind == 3:
            delta = store.extract([shard], dirty_only=True)
            assert delta is not None
            store.install(delta, dirty=bool(number % 2))
        else:
            store.cut(lambda changed, live: [])
        found = store.slots.counts(SHARDS)
        wanted = SlotArrays.counts(store.slots, SHARDS)
        assert [one.tolist() for one in found] == [one.tolist() for one in wanted]


def test_pages_are_unmapped_above_the_limit_and_read_again(state_folder: Path) -> None:
    unmapped = []

    class Watched(UnnamedFiles):
        def unmap(self) -> None:
            unmapped.append(True)
            super().unmap()

    store = made(Watched(state_folder, resident=lambda: 10, most=-1))
    batches = many()
    session = store.session(0)
    for keys in batches:
        count(session, keys)
    assert len(unmapped) > 10
    assert counts(store) == expected(batches)


def test_pages_that_are_read_ahead_have_the_same_contents(files: UnnamedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    advise = os.posix_fadvise

    def noted(descriptor: int, offset: int, length: int, advice: int) -> None:
        asked.append((offset, length))
        advise(descriptor, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", noted)
    pages = iter(range(0, 10**9, 10**6))
    # Every look says that a million pages were read from the disk.
    monkeypatch.setattr("dask_elastic.state.disk.unnamed_files._pages_read", lambda: next(pages))
    store = made(files)
    batches = many()
    session = store.session(0)
    for keys in batches:
        count(session, keys)
    assert counts(store) == expected(batches)
    assert asked
    # More than 32 pages at once are not read.
    assert all(offset % 4096 == 0 and 4096 <= length <= 32 * 4096 for offset, length in asked)


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=30), max_size=8))
def test_mapped_index_finds_what_an_index_in_memory_finds(state_folder: Path, hashes: list[list[int]]) -> None:
    here, there = NumpyIndex(), MappedIndex(UnnamedFiles(state_folder))
    for batch in hashes:
        words = np.unique(np.array(batch, np.uint64))
        new = words[here.lookup(words) < 0]
        for index in (here, there):
            index.insert(new, np.arange(len(here), len(here) + len(new)) if index is here else here.lookup(new))
    probes = np.array([hash for batch in hashes for hash in [*batch, *(hash ^ 1 for hash in batch)]], np.uint64)
    assert there.lookup(probes).tolist() == here.lookup(probes).tolist()
    assert len(there) == len(here)


def test_mapped_index_grows_by_copying(files: UnnamedFiles) -> None:
    index = MappedIndex(files)
    hashes = np.random.default_rng(1).integers(0, 2**64, 100_000, np.uint64)
    for start in range(0, 100_000, 9_000):
        some = hashes[start : start + 9_000]
        index.insert(some, np.arange(start, start + len(some)))
    assert (index.lookup(hashes) == np.arange(100_000)).all()
    assert index.nbytes == 16 << 18


def test_blobs_that_are_replaced_free_their_space(files: UnnamedFiles) -> None:
    blobs, random = Blobs(files, 64), np.random.default_rng(0)
    last = {}
    for number in range(400):
        slots = np.sort(random.choice(64, 8, replace=False))
        written = [bytes([number % 256]) * int(length) for length in random.integers(0, 3_000, 8)]
        blobs.write(slots, written)
        last |= dict(zip(slots.tolist(), written, strict=True))
    assert blobs.read(np.array(sorted(last))) == [last[slot] for slot in sorted(last)]
    assert files.nbytes < 6 * sum(map(len, last.values()))


def test_key_file_returns_keys_in_any_order(files: UnnamedFiles) -> None:
    keys, total = KeyFile(KEYS, files), 0
    for rows in (5, 9_000, 1, 20_000, 300):
        numbers = range(total, total + rows)
        keys.append(pa.record_batch({"key": numbers, "name": [f"n{number}" for number in numbers]}, schema=KEYS))
        total += rows
    for slots in (np.arange(total), np.random.default_rng(2).permutation(total)[:5_000], np.empty(0, np.intp)):
        taken = keys.take(slots)
        assert taken["key"].to_pylist() == slots.tolist()
        assert taken["name"].to_pylist() == [f"n{slot}" for slot in slots]
        assert taken.schema.equals(KEYS)
