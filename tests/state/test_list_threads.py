"""Lists of several tasks in one buffer that concurrently grows, is swept and is read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.state import KeyedStore, List, StateLayout, StateView
from dask_elastic.state.expiry.sweeper import Sweeper

pytestmark = pytest.mark.usefixtures("storage")

TASKS, SHARDS, BATCHES, ROWS = 4, 16, 50, 300
LAYOUT = StateLayout({"kept": List(pa.int64()), "short": List(pa.string(), ttl=5.0)})


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def made(make_lock: type = threading.Lock) -> KeyedStore:
    return KeyedStore(SHARDS, lambda hashes: (hashes % np.uint64(SHARDS)).astype(np.intp), make_lock, track_dirty=True)


@pytest.mark.usefixtures("frequent_switches")
def test_lists_written_by_concurrent_tasks_hold_only_their_keys_values():
    store, flushed = made(), made()
    store.declare(pa.schema({"key": pa.int64()}), LAYOUT.fields)
    for shard in range(SHARDS):
        store.grant(shard, shard % TASKS)
    failures: list[BaseException] = []
    done = threading.Event()
    expected = [np.zeros(0, np.int64)] * TASKS

    def work(task: int) -> None:
        session = store.session(task)
        sweeper = Sweeper(session, LAYOUT)
        random = np.random.default_rng(task)
        seen = []
        for batch in range(BATCHES):
            keys = random.integers(0, 50 * (batch + 1), ROWS) * TASKS + task
            rows = pa.record_batch({"key": keys})
            located = session.locate(rows, ["key"], keys.astype(np.uint64))
            view = StateView(session, located, rows, ["key"], LAYOUT, now=float(batch))
            view.list("kept").append(keys)
            view.list("short").append(keys.astype(str))
            view.commit()
            sweeper.step(float(batch), len(view))
            seen.append(keys)
        expected[task] = np.concatenate(seen)

    def check(state: KeyedStore) -> None:
        keys, values = state.rows()
        for name, kind in (("kept", np.int64), ("short", str)):
            lists = values[LAYOUT.spans[name].start]
            assert (lists.values.astype(kind) == keys["key"].to_numpy()[lists.owners].astype(kind)).all()

    def read() -> None:
        while not done.is_set():
            check(store)
            dirty = store.extract(dirty_only=True)
            assert dirty is not None
            flushed.install(dirty)
            check(flushed)
            store.shard_bytes()

    def guarded(target, *arguments: int) -> None:
        try:
            target(*arguments)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=guarded, args=(read,))
    workers = [threading.Thread(target=guarded, args=(work, task)) for task in range(TASKS)]
    for thread in [reader, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    reader.join()
    assert failures == []
    last = store.extract(dirty_only=True)
    assert last is not None
    flushed.install(last)
    truth = dict(zip(*np.unique(np.concatenate(expected), return_counts=True), strict=True))
    for state in (store, flushed):
        keys, values = state.rows()
        found = dict(zip(keys["key"].to_pylist(), values[0].lengths.tolist(), strict=True))
        assert found == truth
        check(state)
    assert len(store.rows()[1][LAYOUT.spans["short"].start].values) < ROWS * BATCHES * TASKS / 2, "nothing was swept"
