from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.state import KeyedStore, decode
from dask_elastic.topology.aggregates.field import Field

pytestmark = pytest.mark.usefixtures("storage")

TASKS = 4
SHARDS = 16
BATCHES = 60
ROWS = 400
FIELDS = (Field("count", np.dtype(np.int64), 0), Field("sum", np.dtype(np.int64), 0))


def shard_of(hashes: np.ndarray) -> np.ndarray:
    return (hashes % np.uint64(SHARDS)).astype(np.intp)


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("checked", [False, True])
def test_concurrent_tasks_with_growth_and_reads_lose_no_update(checked: bool) -> None:
    store = KeyedStore(SHARDS, shard_of, threading.Lock, track_dirty=True)
    store.declare(pa.schema({"key": pa.int64()}), FIELDS)
    for shard in range(SHARDS):
        store.grant(shard, shard % TASKS)
    expected = [np.zeros(0, np.int64)] * TASKS
    failures: list[BaseException] = []
    flushed = KeyedStore(SHARDS, shard_of)
    done = threading.Event()

    def work(task: int) -> None:
        session = store.session(task)
        random = np.random.default_rng(task)
        seen = []
        for batch in range(BATCHES):
            # Half of the rows have keys that are new with this batch; all are of this task's shards.
            keys = random.integers(0, 200 * (batch + 1), ROWS) * TASKS + task
            rows = pa.record_batch({"key": keys})
            hashes = keys.astype(np.uint64)
            located = session.locate(rows, ["key"], hashes, hashes + np.uint64(1) if checked else None)
            grouping = located.grouping
            sums = np.bincount(grouping.ordinals, keys, grouping.count).astype(np.int64)
            current = session.gather(located)
            session.scatter(located, [current[0] + grouping.sizes, current[1] + sums])
            seen.append(keys)
        expected[task] = np.concatenate(seen)

    def read() -> None:
        while not done.is_set():
            keys, (count, total) = store.rows()
            assert (keys["key"].to_numpy() * count == total).all()
            dirty = store.extract(dirty_only=True)
            assert dirty is not None
            flushed.install(dirty)
            store.shard_bytes()

    def guarded(target: object, *arguments: int) -> None:
        try:
            target(*arguments)  # type: ignore[operator]
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
    keys, counts = np.unique(np.concatenate(expected), return_counts=True)
    assert len(store) == len(keys)
    assert store.slots.used > 4096
    for some in (store, flushed):
        found, (count, total) = some.rows()
        order = np.argsort(found["key"].to_numpy())
        assert (found["key"].to_numpy()[order] == keys).all()
        assert (count[order] == counts).all()
        assert (total[order] == counts * keys).all()


@pytest.mark.usefixtures("frequent_switches")
def test_install_and_drop_of_one_shard_leave_other_shards_updates_intact() -> None:
    """Each drop of shard 1 packs the store, while task 0 updates shard 0."""
    store = KeyedStore(2, lambda hashes: (hashes % np.uint64(2)).astype(np.intp), threading.Lock)
    store.declare(pa.schema({"key": pa.int64()}), FIELDS)
    store.grant(0, 0)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            session = store.session(0)
            for batch in range(150):
                keys = (np.arange(300) + 10 * batch) * 2
                located = session.locate(pa.record_batch({"key": keys}), ["key"], keys.astype(np.uint64))
                session.apply(located, lambda current: [current[0] + 1, current[1]])
        except BaseException as error:
            failures.append(error)

    source = KeyedStore(2, lambda hashes: (hashes % np.uint64(2)).astype(np.intp))
    source.declare(pa.schema({"key": pa.int64()}), FIELDS)
    source.grant(1, 9)
    odd = np.arange(8000) * 2 + 1
    source_session = source.session(9)
    located = source_session.locate(pa.record_batch({"key": odd}), ["key"], odd.astype(np.uint64))
    source_session.apply(located, lambda current: [current[0] + 7, current[1]])
    state = source.extract()
    assert state is not None
    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        store.install(state)
        back = store.extract([1])
        assert back is not None
        assert (decode(back).values[0] == 7).all()
        assert back.num_rows == len(odd)
        store.drop([1])
    worker.join()
    assert failures == []
    assert store.layout > 0
    keys, (count, _) = store.rows()
    _, expected = np.unique(
        np.concatenate([(np.arange(300) + 10 * batch) * 2 for batch in range(150)]), return_counts=True
    )
    assert (count[np.argsort(keys["key"].to_numpy())] == expected).all()
