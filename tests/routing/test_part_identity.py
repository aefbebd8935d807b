"""Parts of a key: in its group, and distinct from each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.part_identity import part_checks, part_hashes

WORDS = arrays.arrays(np.uint64, st.integers(1, 50), elements=st.integers(0, 2**64 - 1), unique=True)
SALTS = st.integers(-(2**63), 2**63 - 1)
GROUPS = st.one_of(st.integers(1, 2**16), st.sampled_from([1, 2, 3, 256, 2048, 2**32]))


@given(hashes=WORDS, salt=SALTS, groups=GROUPS)
def test_part_is_in_the_group_of_its_key_and_keys_stay_distinct(hashes, salt, groups):
    found = part_hashes(hashes, salt, groups)
    assert np.array_equal(found % np.uint64(groups), hashes % np.uint64(groups))
    assert len(np.unique(found)) == len(hashes)


@pytest.mark.parametrize(("executors", "shards"), [(1, 256), (6, 40), (3, 5)])
def test_part_stays_in_its_shard_for_every_number_of_executors(executors, shards):
    groups = executors * shards
    hashes = np.random.default_rng(0).integers(0, 2**64, 1_000, dtype=np.uint64)
    parts = part_hashes(hashes, np.arange(1_000), groups)
    for wanted in (number for number in range(1, groups + 1) if groups % number == 0):
        space = KeySpace(wanted, groups // wanted)
        assert np.array_equal(space.executor_of(parts), space.executor_of(hashes))
        assert np.array_equal(space.shard_of(parts), space.shard_of(hashes))


@pytest.mark.parametrize("groups", [1, 256, 3, 1000])
def test_hashes_beyond_the_complete_blocks_stay_distinct(groups):
    hashes = np.concatenate([np.arange(2**64 - 2 * groups, 2**64, dtype=np.uint64), np.arange(10, dtype=np.uint64)])
    for salt in range(20):
        found = part_hashes(hashes, salt, groups)
        assert len(np.unique(found)) == len(hashes)
        assert np.array_equal(found % np.uint64(groups), hashes % np.uint64(groups))


@given(groups=GROUPS, first=st.integers(-(2**62), 2**62), step=st.sampled_from([1, 7, 10**6]))
def test_parts_of_keys_have_distinct_identities(groups, first, step):
    hashes = np.random.default_rng(1).integers(0, 2**64, 300, dtype=np.uint64)
    keys, salts = np.repeat(hashes, 20), np.tile(first + step * np.arange(20), 300)
    found = np.stack([part_hashes(keys, salts, groups), part_checks(None, salts, len(keys))])
    assert len(np.unique(found, axis=1).T) == len(keys)


@given(hashes=WORDS, salt=SALTS, groups=GROUPS)
def test_one_salt_for_all_is_the_same_as_one_for_each(hashes, salt, groups):
    salts = np.full(len(hashes), salt, np.int64)
    assert np.array_equal(part_hashes(hashes, salt, groups), part_hashes(hashes, salts, groups))
    for checks in (None, hashes):
        one, each = (part_checks(checks, given_, len(hashes)) for given_ in (salt, salts))
        assert np.array_equal(one, each)


def test_check_tells_parts_that_share_a_hash():
    checks = part_checks(None, np.arange(-500, 500), 1_000)
    assert len(np.unique(checks)) == 1_000


def test_constants_are_part_of_the_format():
    hashes = np.array([1, 2**63 + 5], np.uint64)
    assert part_hashes(hashes, 3, 256).tolist() == [2092789425003138817, 11316161461857914629]
    assert part_hashes(hashes, 3, 10).tolist() == [2481150176321838921, 11704522213176614733]
    assert part_checks(None, 3, 1).tolist() == [242179716235609251]
