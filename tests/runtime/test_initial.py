"""Where a job begins: every executor at a home of its own nodes, no slot twice unless there are too few."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.planning.initial import PlacementRequest, place
from dask_elastic.vocab.errors import PlanningError

demands = st.lists(
    st.builds(
        PlacementRequest,
        name=st.sampled_from("abcdef"),
        instances=st.one_of(st.none(), st.integers(1, 4)),
        stateful=st.booleans(),
        cores=st.one_of(st.none(), st.integers(1, 4)),
    ),
    max_size=5,
    unique_by=lambda demand: demand.name,
)
slots = st.lists(st.integers(0, 5), min_size=1, max_size=5)


@given(demands, slots)
def test_initial_placement_uses_slots_once_unless_oversubscribed(wanted, free):
    placed = place(wanted, free)
    used = [0] * len(free)
    for cores in placed.cores.values():
        for by_node in cores:
            for node, count in by_node.items():
                used[node] += count
    fits = all(count <= slot for count, slot in zip(used, free, strict=True))
    assert placed.oversubscribed == (not fits)


@given(demands, slots)
def test_initial_placement_gives_each_executor_a_core_at_home(wanted, free):
    placed = place(wanted, free)
    assert set(placed.homes) == {demand.name for demand in wanted}
    assert set(placed.cores) == {demand.name for demand in wanted if demand.stateful}
    for demand in wanted:
        homes = placed.homes[demand.name]
        assert all(0 <= node < len(free) for node in homes)
        assert demand.instances is None or len(homes) == demand.instances
        if demand.stateful:
            cores = placed.cores[demand.name]
            assert len(cores) == len(homes)
            assert all(by_node[home] >= 1 for by_node, home in zip(cores, homes, strict=True))
            assert demand.cores is None or all(sum(by_node.values()) == demand.cores for by_node in cores)


@given(demands, slots)
def test_initial_placement_is_deterministic(wanted, free):
    assert place(wanted, free) == place(wanted, free)


@given(demands, slots, st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=5))
def test_initial_placement_keeps_given_homes_and_uses_slots_once(wanted, free, homes):
    given_homes = tuple(None if home is None else home % len(free) for home in homes)
    wanted = [replace(demand, homes=given_homes) if demand.stateful else demand for demand in wanted]
    test_initial_placement_uses_slots_once_unless_oversubscribed.hypothesis.inner_test(wanted, free)
    test_initial_placement_gives_each_executor_a_core_at_home.hypothesis.inner_test(wanted, free)
    placed = place(wanted, free)
    for demand in wanted:
        if demand.stateful:
            pairs = zip(placed.homes[demand.name], given_homes, strict=False)
            assert all(home in (node, None) for node, home in pairs)


def test_initial_placement_spreads_executors_around_given_homes():
    placed = place([PlacementRequest("c", 3, True, 1, homes=(None, 0))], [2, 2, 1])
    assert placed.homes["c"] == (1, 0, 2)


def test_initial_placement_spreads_executors_over_free_slots():
    placed = place(
        [PlacementRequest("s", 3, False), PlacementRequest("c", None, True), PlacementRequest("d", 1, True, 1)],
        [2, 2, 2],
    )
    assert sorted(placed.homes["c"]) != [0, 0, 0]
    assert sum(sum(by_node.values()) for cores in placed.cores.values() for by_node in cores) == 6
    assert placed.homes["s"] == (0, 1, 2)
    assert not placed.oversubscribed


def test_initial_placement_without_nodes_is_empty():
    with pytest.raises(PlanningError, match="no node"):
        place([PlacementRequest("c", None, True)], [])


def test_instances_of_sources_get_the_nodes_that_are_given():
    request = PlacementRequest("rows", 3, False, homes=(1, None, 0))
    assert place([request], [2, 2]).homes["rows"] == (1, 1, 0)
    assert place([request], [2, 2], {"rows": (0, 0, 1)}).homes["rows"] == (1, 0, 0)


@given(st.lists(st.integers(-3, 5), min_size=1, max_size=8), st.integers(1, 20))
def test_each_executor_goes_to_the_node_with_most_free_slots(free, executors):
    placed = place([PlacementRequest("a", executors, True, cores=1)], free)
    left, held = list(free), [0] * len(free)
    for home in placed.homes["a"]:
        assert home == max(range(len(free)), key=lambda node: (left[node], -held[node], -node))
        left[home] -= 1
        held[home] += 1


@pytest.mark.parametrize("cores", [None, 3])
def test_work_of_placement_grows_with_the_cluster_and_not_with_its_square(cores):
    def calls(nodes):
        count = 0

        def note(frame, event, argument):
            nonlocal count
            count += 1

        requests = [PlacementRequest("source", nodes, False), PlacementRequest("a", nodes, True, cores)]
        sys.setprofile(note)
        try:
            place(requests, [2] * nodes)
        finally:
            sys.setprofile(None)
        return count

    assert calls(400) < 6 * calls(100)
