from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.mark_due import MarkDue
from dask_elastic.routing.versioned_sends import VersionedSends
from dask_elastic.vocab.errors import MoveRefused

HOMES = (5, 7, 5)


def a_table():
    return GroupTable.initial(groups=8, homes=HOMES)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=60), st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_rows_go_to_the_owner_of_their_group_in_order(hashes, owners):
    table = GroupTable(3, np.array(owners, np.uint16), HOMES)
    keys = np.array(hashes, np.uint64)
    rows = pa.record_batch({"place": np.arange(len(keys))})
    parts = table.split(rows, keys, keys % np.uint64(8))
    places = []
    for executor, part, part_hashes in parts:
        found = part["place"].to_pylist()
        assert found == sorted(found)
        assert [owners[hashed % 8] for hashed in part_hashes.tolist()] == [executor] * len(found)
        assert [hashes[place] for place in found] == part_hashes.tolist()
        places += found
    assert sorted(places) == [*range(len(hashes))]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6))
def test_first_table_gives_each_executor_a_range_of_groups(groups, executors):
    table = GroupTable.initial(groups, range(executors))
    assert table.owners.tolist() == sorted(table.owners.tolist())
    sizes = [len(table.owned_by(executor)) for executor in range(executors)]
    assert sum(sizes) == groups
    assert max(sizes) - min(sizes) <= 1


def test_move_returns_the_next_version_and_leaves_the_table():
    table = a_table()
    before = table.owners.tolist()
    moved = table.moved({0: 1, 7: 1})
    assert (moved.version, moved.owners[0], moved.owners[7], moved.marked) == (1, 1, 1, (0, 1, 2))
    assert table.owners.tolist() == before
    assert table.moved({0: 1}).marked == (0, 1)
    assert table.moved({0: 1}, mark_all=True).marked == (0, 1, 2)
    assert table.moved({0: 1}, version=9).version == 9


@pytest.mark.parametrize(
    ("moves", "error"),
    [
        ({}, "no group is to move"),
        ({8: 1}, "group 8 does not exist: the groups are 0 to 7"),
        ({0: 3}, "group 0 cannot move to executor 3: the executors are 0 to 2"),
        ({0: 0}, "group 0 belongs to executor 0 already"),
    ],
)
def test_impossible_move_is_refused_by_name(moves, error):
    with pytest.raises(MoveRefused, match=error):
        a_table().moved(moves)


def test_table_of_a_checkpoint_has_the_groups_where_they_were():
    table = GroupTable.of_parts(8, HOMES, {0: (1, 7), 2: (0,)})
    assert [table.owned_by(executor) for executor in range(3)] == [(1, 2, 7), (3, 4, 5), (0, 6)]


def test_end_marks_are_due_behind_the_last_send_under_the_old_table():
    first = a_table()
    sends = VersionedSends(first)
    old = sends.begin()
    second = first.moved({0: 1})
    assert sends.switch(second) == []
    assert sends.begin() is sends.current is second
    assert sends.end(old) == [MarkDue(0, 5, 1), MarkDue(1, 7, 1)]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_spread_groups_are_even_and_most_stay(groups, before, executors, random):
    executors = min(executors, groups)
    parts = {}
    for group in range(groups):
        parts.setdefault(random.randrange(before), []).append(group)
    table = GroupTable.spread(groups, [0] * executors, parts)
    sizes = np.bincount(table.owners, minlength=executors)
    assert sizes.max() - sizes.min() <= 1
    for executor in range(executors):
        kept = {*table.owned_by(executor)} & {*parts.get(executor, ())}
        assert len(kept) == min(len(parts.get(executor, ())), sizes[executor])
