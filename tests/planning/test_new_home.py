"""The new home of an executor whose worker leaves: where its tasks fit, the same in every order of the nodes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.planning.new_home import HomeCandidate, SlotUse, following_cores, new_home

nodes = st.lists(
    st.builds(HomeCandidate, st.integers(0, 20), st.integers(-3, 6), st.integers(0, 4), st.integers(0, 4)),
    min_size=1,
    max_size=6,
    unique_by=lambda candidate: candidate.node,
)
cores = st.integers(1, 8)


def local(candidate, wanted):
    return min(wanted, candidate.own_cores + max(0, candidate.free_slots))


@given(nodes, cores)
def test_new_home_has_room_for_the_most_cores_of_the_executor(candidates, wanted):
    chosen = next(one for one in candidates if one.node == new_home(candidates, wanted))
    assert local(chosen, wanted) == max(local(one, wanted) for one in candidates)
    equal = [one for one in candidates if local(one, wanted) == local(chosen, wanted)]
    assert chosen.own_cores == max(one.own_cores for one in equal)
    assert chosen.homes == min(one.homes for one in equal if one.own_cores == chosen.own_cores)


@given(nodes, cores, st.randoms())
def test_new_home_does_not_depend_on_the_order_of_the_nodes(candidates, wanted, random):
    shuffled = random.sample(candidates, len(candidates))
    assert new_home(shuffled, wanted) == new_home(candidates, wanted)


@given(nodes, cores)
def test_new_home_stays_the_choice_when_it_gets_more_free_slots(candidates, wanted):
    chosen = new_home(candidates, wanted)
    roomier = [replace(one, free_slots=one.free_slots + 1) if one.node == chosen else one for one in candidates]
    assert new_home(roomier, wanted) == chosen


def test_homes_spread_over_equal_nodes():
    assert new_home([HomeCandidate(0, 2, 0, 1), HomeCandidate(1, 2, 0, 0)], 1) == 1


def test_without_nodes_that_stay_there_is_no_new_home():
    assert new_home([], 1) is None


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 30), st.integers(0, 8), st.integers(0, 30))
def test_cores_follow_a_home_into_free_slots_or_where_fewer_share_them(cores, slots, held, other_slots, other_held):
    source, target = SlotUse(slots, max(held, cores)), SlotUse(other_slots, other_held)
    follow = following_cores(cores, source, target)
    assert 0 <= follow <= cores
    assert follow >= min(cores, max(other_slots - other_held, 0))
    assert other_slots or not follow
    if follow > max(other_slots - other_held, 0):
        assert target.crowd(follow) <= source.crowd()
