from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dask_elastic.meters import MeterError, ShardLoad

counts = hnp.arrays(np.int64, 8, elements=st.integers(0, 1000))


@given(st.lists(st.tuples(counts, st.floats(0, 0.1)), max_size=20))
def test_shard_loads_sum_to_busy_time(batches):
    load = ShardLoad(8, window=2.0)
    for index, (rows, busy) in enumerate(batches):
        load.add(rows, busy, now=index / 10)
    attributed = [(index / 10, busy) for index, (rows, busy) in enumerate(batches) if rows.sum() and busy > 0]
    loads = load.loads(now=2.0)
    assert loads.dtype == np.float64
    assert (loads >= 0).all()
    # Until a window has passed, the load is the mean since the first batch.
    span = 2.0 - attributed[0][0] if attributed else 2.0
    assert loads.sum() == pytest.approx(sum(busy for _, busy in attributed) / max(span, 0.2))


@given(counts, st.floats(0.001, 1))
def test_shard_load_with_listed_shards_equals_dense_form(rows, busy):
    dense, named = ShardLoad(8), ShardLoad(8)
    dense.add(rows, busy, now=1.0)
    used = np.flatnonzero(rows)
    # Each shard is listed twice, with half of the share each time.
    named.add(np.repeat(rows[used], 2), busy, now=1.0, shards=np.repeat(used, 2).astype(np.uint16))
    np.testing.assert_allclose(dense.loads(1.0), named.loads(1.0))


def test_shard_load_forgets_old_load():
    load = ShardLoad(2, window=1.0)
    load.add(np.array([1, 1]), 0.5, now=0.0)
    assert load.loads(0.5).sum() > 0
    assert load.loads(1.2).sum() == 0
    assert load.window == 1.0


def test_shard_loads_result_is_a_copy():
    load = ShardLoad(2)
    load.add(np.array([1, 1]), 0.5, now=0.0)
    load.loads(0.0)[:] = 9
    assert load.loads(1.0).sum() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rows", "shards", "message"),
    [
        ([1, 2], None, "2 row counts for 4 shards"),
        ([1], [0, 1], "1 row counts for 2 shards"),
        ([1], [4], "numbered from 0 to 3"),
        ([1], [-1], "numbered from 0 to 3"),
    ],
)
def test_shard_load_add_with_wrong_arguments_raises(rows, shards, message):
    with pytest.raises(MeterError, match=message):
        ShardLoad(4).add(np.array(rows), 0.1, 0.0, None if shards is None else np.array(shards))


def test_shard_load_without_shards_raises():
    with pytest.raises(MeterError, match="shards is 0"):
        ShardLoad(0)


def test_shard_load_read_concurrent_with_writes_never_fails():
    load = ShardLoad(600, window=0.01)
    rows = np.ones(600, dtype=np.int64)
    done = threading.Event()
    failures = []

    def read():
        now = 0.0
        while not done.is_set():
            now += 0.001
            try:
                assert np.isfinite(load.loads(now)).all()
            except Exception as error:
                failures.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(3000):
        load.add(rows, 0.001, now=step / 1000)
    done.set()
    reader.join()
    assert not failures


@given(st.lists(st.lists(st.integers(0, 7), max_size=5), max_size=6), st.floats(0, 1))
def test_shard_load_of_listed_rows_equals_that_of_their_counts(batches, busy):
    listed, counted = ShardLoad(8), ShardLoad(8)
    for index, shards in enumerate(batches):
        listed.add_rows(shards, busy, now=index / 10)
        counted.add(np.bincount(np.array(shards, np.int64), minlength=8), busy, now=index / 10)
    np.testing.assert_allclose(listed.loads(1.0), counted.loads(1.0))
    assert listed.rows.tolist() == counted.rows.tolist()
