from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.routing.home_table import HomeTable
from dask_elastic.vocab.errors import MoveRefused


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_move_changes_one_home_and_the_version_and_keeps_the_old_table(homes, data):
    table = HomeTable.initial(homes)
    executor = data.draw(st.integers(0, len(homes) - 1))
    to = data.draw(st.integers(0, 6).filter(lambda node: node != homes[executor]))
    moved = table.moved(executor, to)
    assert moved.version == table.version + 1
    assert moved.differences(table) == [executor] == table.differences(moved)
    assert moved.homes[executor] == to
    assert table.homes == tuple(homes)


def test_move_to_the_home_itself_is_refused():
    with pytest.raises(MoveRefused, match="home of executor 1 is on node 3 already"):
        HomeTable.initial([2, 3]).moved(1, to=3)


@pytest.mark.parametrize("executor", [-1, 2])
def test_move_of_executor_that_does_not_exist_is_refused(executor):
    with pytest.raises(MoveRefused, match=f"executor {executor} does not exist: the executors are 0 to 1"):
        HomeTable.initial([2, 3]).moved(executor, to=0)
