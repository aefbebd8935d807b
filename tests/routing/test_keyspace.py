from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.errors import TopologyError

HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50)


@given(st.integers(1, 300), st.integers(1, 300), HASHES)
def test_groups_are_dealt_to_executors_in_whole_ranges(executors, shards, hashes):
    space = KeySpace(executors, shards)
    array = np.array(hashes, dtype=np.uint64)
    groups = [h % (executors * shards) for h in hashes]
    assert space.groups == executors * shards
    assert space.group_of(array).tolist() == groups
    assert space.executor_of(array).tolist() == [group * executors // space.groups for group in groups]
    assert space.shard_of(array).tolist() == [group % shards for group in groups]


@given(st.integers(1, 8), st.integers(1, 64), HASHES)
def test_the_groups_of_an_executor_stay_together_with_more_executors(executors, shards, hashes):
    """A restore with twice the executors and half the shards keeps every group whole."""
    array = np.array(hashes, dtype=np.uint64)
    few, many = KeySpace(executors, 2 * shards), KeySpace(2 * executors, shards)
    assert (many.executor_of(array) // 2 == few.executor_of(array)).all()


@pytest.mark.parametrize(("executors", "shards"), [(0, 4), (4, 0), (65_537, 4), (4, 65_537)])
def test_sizes_out_of_range_are_refused(executors, shards):
    with pytest.raises(TopologyError, match="out of range"):
        KeySpace(executors, shards)


@pytest.mark.parametrize(("shards", "dtype"), [(256, np.uint8), (257, np.uint16), (65_535, np.uint16)])
def test_shards_are_of_the_type_that_sorts_by_radix(shards, dtype):
    assert KeySpace(1, shards).shard_of(np.array([1], dtype=np.uint64)).dtype == dtype
