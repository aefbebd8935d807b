"""Identities of keys that are routed by some of their columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.routing.co_partition import in_group, key_hashes
from dask_elastic.routing.hashing import hash_columns

WORD = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=20), st.integers(2, 2**32))
def test_identity_has_the_group_of_the_other_hash_and_stays_close(pairs, groups):
    hashes, placed = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    found_hashes = in_group(hashes, placed, groups).tolist()
    for before, place, found in zip(hashes.tolist(), placed.tolist(), found_hashes, strict=True):
        assert found % groups == place % groups
        assert abs(found - before) < 2 * groups


def test_last_hash_keeps_its_group():
    last = np.array([2**64 - 1], np.uint64)
    assert int(in_group(last, last, 1000)[0]) % 1000 == (2**64 - 1) % 1000


@pytest.mark.parametrize("routed_by", [None, ("area", "kind")])
def test_keys_that_are_routed_by_all_columns_keep_their_hash(routed_by):
    rows = pa.record_batch({"area": ["n", "s"], "kind": [1, 2]})
    assert (key_hashes(rows, ("area", "kind"), routed_by, 64) == hash_columns(rows, ("area", "kind"))).all()


def test_keys_in_another_order_are_placed_together():
    rows = pa.record_batch({"area": ["n", "s"], "kind": [1, 2]})
    one, other = key_hashes(rows, ("area", "kind")), key_hashes(rows, ("kind", "area"), ("area", "kind"), 64)
    assert (one % 64 == other % 64).all()
    assert (one != other).all()
