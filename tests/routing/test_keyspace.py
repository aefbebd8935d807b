from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.errors import TopologyError

HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50)


@given(st.integers(1, 300), st.integers(1, 300), HASHES)
def test_keyspace_assigns_contiguous_groups_to_executors(executors, shards, hashes):
    space = KeySpace(executors, shards)
    array = np.array(hashes, dtype=np.uint64)
    groups = [h % (executors * shards) for h in hashes]
    assert space.groups == executors * shards
    assert space.group_of(array).tolist() == groups
    assert space.executor_of(array).tolist() == [group * executors // space.groups for group in groups]
    assert space.shard_of(array).tolist() == [group % shards for group in groups]
    assert [space.executor_of_one(h) for h in hashes] == space.executor_of(array).tolist()
    assert space.shards_of_few(array) == space.shard_of(array).tolist()


@given(st.integers(1, 8), st.integers(1, 64), HASHES)
def test_keyspace_with_twice_the_executors_splits_each_executors_groups(executors, shards, hashes):
    """A restore with twice the executors and half the shards keeps every group whole."""
    array = np.array(hashes, dtype=np.uint64)
    few, many = KeySpace(executors, 2 * shards), KeySpace(2 * executors, shards)
    assert (many.executor_of(array) // 2 == few.executor_of(array)).all()


@pytest.mark.parametrize(("executors", "shards"), [(0, 4), (4, 0), (65_537, 4), (4, 65_537)])
def test_keyspace_with_size_out_of_range_raises(executors, shards):
    with pytest.raises(TopologyError, match="out of range"):
        KeySpace(executors, shards)


@pytest.mark.parametrize(("shards", "dtype"), [(256, np.uint8), (257, np.uint16), (65_535, np.uint16)])
def test_shard_of_returns_smallest_type_for_radix_sort(shards, dtype):
    assert KeySpace(1, shards).shard_of(np.array([1], dtype=np.uint64)).dtype == dtype
