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
def test_shards_of_one_task_are_neighbours_and_paused_ones_come_last(table):
    routes = table.routes.tolist()
    runs = [route for position, route in enumerate(routes) if position == 0 or route != routes[position - 1]]
    assert len(runs) == len(set(runs))
    assert PAUSED not in runs[:-1]
    assert sorted(table.order.tolist()) == list(range(len(table.owner)))
    assert (table.rank[table.order] == np.arange(len(table.owner))).all()
    assert (np.where(table.paused, PAUSED, table.owner)[table.order] == table.routes).all()


@given(tables())
def test_a_single_task_is_one_that_has_every_shard_at_rest(table):
    owners = set(table.owner.tolist())
    expected = owners.pop() if len(owners) == 1 and not table.paused.any() else None
    assert table.single == expected


def test_a_change_makes_the_next_version_and_leaves_the_table_as_it_was():
    table = ShardTable.initial(4, [0, 1])
    paused = table.pause(2)
    moved = paused.moved(2, 1)
    assert (table.version, paused.version, moved.version) == (0, 1, 2)
    assert not table.paused.any()
    assert paused.shards_of(0).tolist() == [0, 2]
    assert table.owner.tolist() == paused.owner.tolist() == [0, 1, 0, 1]
    assert moved.owner.tolist() == [0, 1, 1, 1]
    assert moved.shards_of(0).tolist() == [0]


def test_a_second_move_of_a_moving_shard_is_refused():
    with pytest.raises(MoveRefused, match="shard 3 is on the move already"):
        ShardTable.initial(4, [0]).pause(3).pause(3)


def test_no_shard_changes_its_owner_without_a_pause():
    with pytest.raises(ProtocolError, match="without a pause"):
        ShardTable.initial(4, [0, 1]).moved(0, 1)
