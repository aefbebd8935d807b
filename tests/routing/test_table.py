from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.routing.table import PAUSED, ShardTable
from dask_elastic.vocab.errors import MoveRefused, ProtocolError


@st.composite
def tables(draw):
    shards = draw(st.integers(1, 300))
    tasks = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True))
    table = ShardTable.initial(shards, tasks)
    for shard in draw(st.lists(st.integers(0, shards - 1), max_size=8, unique=True)):
        table = table.pause(shard)
        if draw(st.booleans()):
            table = table.moved(shard, draw(st.sampled_from(tasks)))
    return table


@given(tables())
def test_shard_table_order_has_contiguous_tasks_and_paused_shards_last(table):
    routes = table.routes.tolist()
    distinct = [route for position, route in enumerate(routes) if position == 0 or route != routes[position - 1]]
    assert len(distinct) == len(set(distinct))
    assert PAUSED not in distinct[:-1]
    assert sorted(table.order.tolist()) == list(range(len(table.owner)))
    assert (table.rank[table.order] == np.arange(len(table.owner))).all()
    assert (np.where(table.paused, PAUSED, table.owner)[table.order] == table.routes).all()


@given(tables())
def test_single_is_the_task_that_owns_all_shards_with_none_paused(table):
    owners = set(table.owner.tolist())
    expected = owners.pop() if len(owners) == 1 and not table.paused.any() else None
    assert table.single == expected


def test_shard_table_change_returns_next_version_and_keeps_the_table():
    table = ShardTable.initial(4, [0, 1])
    paused = table.pause(2)
    moved = paused.moved(2, 1)
    assert (table.version, paused.version, moved.version) == (0, 1, 2)
    assert not table.paused.any()
    assert paused.shards_of(0).tolist() == [0, 2]
    assert table.owner.tolist() == paused.owner.tolist() == [0, 1, 0, 1]
    assert moved.owner.tolist() == [0, 1, 1, 1]
    assert moved.shards_of(0).tolist() == [0]


def test_pause_of_moving_shard_is_refused():
    with pytest.raises(MoveRefused, match="shard 3 is already moving"):
        ShardTable.initial(4, [0]).pause(3).pause(3)


def test_moved_without_pause_raises():
    with pytest.raises(ProtocolError, match="it is not paused"):
        ShardTable.initial(4, [0, 1]).moved(0, 1)
