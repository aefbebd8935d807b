from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.split import count_by_shard, order_by_shard, split_by_executor
from dask_elastic.routing.table import ShardTable

HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=60).map(lambda values: np.array(values, dtype=np.uint64))


@given(HASHES, st.integers(1, 5), st.integers(1, 7))
def test_split_by_executor_keeps_every_row_in_order(hashes, executors, shards):
    space = KeySpace(executors, shards)
    rows = pa.record_batch({"row": pa.array(np.arange(len(hashes)))})
    seen = []
    for executor, part, its_hashes in split_by_executor(rows, hashes, space):
        numbers = part["row"].to_pylist()
        assert numbers
        assert numbers == sorted(numbers)
        assert its_hashes.tolist() == hashes[numbers].tolist()
        assert set(space.executor_of(its_hashes).tolist()) == {executor}
        seen += numbers
    assert sorted(seen) == list(range(len(hashes)))


@given(HASHES, st.integers(1, 9), st.integers(1, 4), st.data())
def test_order_by_shard_follows_the_table_and_keeps_order_per_shard(hashes, shards, tasks, data):
    space, table = KeySpace(1, shards), ShardTable.initial(shards, range(tasks))
    for shard in data.draw(st.sets(st.integers(0, shards - 1))):
        table = table.pause(shard)
    order, ordered, bounds = order_by_shard(hashes, space, table)
    assert sorted(order.tolist()) == list(range(len(hashes)))
    assert ordered.tolist() == table.order.tolist()
    assert bounds[-1] == len(hashes)
    counts = count_by_shard(hashes, space)
    for position, shard in enumerate(ordered.tolist()):
        rows = order[bounds[position] : bounds[position + 1]].tolist()
        assert rows == sorted(rows)
        assert len(rows) == counts[shard]
        assert set(space.shard_of(hashes[rows]).tolist()) <= {shard}
