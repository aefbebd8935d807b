from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.planning.mini_migrations import GroupTransfer, mini_migrations
from dask_elastic.vocab.errors import PlanningError

NODES = st.integers(0, 5)


@st.composite
def migrations(draw):
    places = draw(st.lists(st.tuples(NODES, NODES, st.integers(0, 1000)), min_size=1, max_size=40))
    return [GroupTransfer(group, target, source, target, size) for group, (source, target, size) in enumerate(places)]


@settings(max_examples=150, deadline=None)
@given(migrations(), st.integers(1, 12))
def test_each_group_moves_once_and_no_node_exceeds_its_limit(transfers, most):
    minis = mini_migrations(transfers, most)
    assert sorted(one.group for mini in minis for one in mini) == [one.group for one in transfers]
    assert all(minis)
    for mini in minis:
        for across in (False, True):
            parts = [one for one in mini if (one.source != one.target) is across]
            for links in ((one.source for one in parts), (one.target for one in parts)):
                assert max(Counter(links).values(), default=0) <= most
    assert minis == mini_migrations(reversed(transfers), most)


@settings(max_examples=150, deadline=None)
@given(migrations())
def test_phases_are_as_few_as_the_busiest_link_allows(transfers):
    """With one group a node and direction at a time there is no shorter schedule."""
    across = [one for one in transfers if one.source != one.target]
    if not across:
        return
    busiest = max([*Counter(o.source for o in across).values(), *Counter(o.target for o in across).values()])
    minis = mini_migrations(across, 1)
    sends = [Counter(one.source for one in mini) for mini in minis]
    receives = [Counter(one.target for one in mini) for mini in minis]
    assert all(max([*s.values(), *r.values()]) == 1 for s, r in zip(sends, receives, strict=True))
    assert len(minis) == busiest


def test_busy_links_are_filled_in_both_directions():
    there = [GroupTransfer(group, 1, 0, 1, 10) for group in range(4)]
    back = [GroupTransfer(group, 0, 1, 0, 10) for group in range(4, 8)]
    minis = mini_migrations(there + back, 1)
    assert [sorted((one.source, one.target) for one in mini) for mini in minis] == [[(0, 1), (1, 0)]] * 4


def test_transfers_of_one_phase_are_of_similar_size():
    transfers = [GroupTransfer(0, 1, 0, 1, 1), GroupTransfer(1, 1, 0, 1, 99)]
    transfers += [GroupTransfer(2, 3, 2, 3, 100), GroupTransfer(3, 3, 2, 3, 2)]
    assert [{one.group for one in mini} for mini in mini_migrations(transfers, 1)] == [{1, 2}, {0, 3}]


def test_nodes_that_share_no_link_do_not_wait_for_each_other():
    transfers = [GroupTransfer(group, group + 10, group, group + 10, 1) for group in range(10)]
    assert len(mini_migrations(transfers, 1)) == 1


def test_link_has_so_many_bytes_at_a_time():
    sizes = [40, 30, 30, 20, 90, 5]
    transfers = [GroupTransfer(group, 1, 0, 1, size) for group, size in enumerate(sizes)]
    minis = mini_migrations(transfers, 3, most_bytes=70)
    assert [[one.nbytes for one in mini] for mini in minis] == [[90], [40, 30], [30, 20, 5]]


def test_transfers_within_a_node_are_limited_by_their_number():
    transfers = [GroupTransfer(group, 1, 0, 0, 100) for group in range(5)]
    assert [len(mini) for mini in mini_migrations(transfers, 2, most_bytes=1)] == [2, 2, 1]


def test_group_that_moves_twice_is_refused():
    twice = [GroupTransfer(3, 1, 0, 1, 10), GroupTransfer(3, 2, 0, 2, 10)]
    with pytest.raises(PlanningError, match="group 3 is to move 2 times"):
        mini_migrations(twice, 4)


def test_limit_without_a_group_is_refused():
    with pytest.raises(PlanningError, match="most_groups=0"):
        mini_migrations([], 0)
