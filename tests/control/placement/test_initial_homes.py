"""Homes at submit: every placement uses the slots that there are, and the planners do what they are for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.placement.choices import PLACEMENTS, SPREAD, kind_of_placement
from dask_elastic.control.placement.initial_homes import ComponentFlow, initial_homes
from dask_elastic.planning.initial import PlacementRequest, place

PLANNED = [name for name in PLACEMENTS if name != SPREAD]
FLOWS = [ComponentFlow("s"), ComponentFlow("a", ("s",)), ComponentFlow("b", ("a",)), ComponentFlow("c", ("a", "s"))]


def requests(a, b, c):
    stateful = [PlacementRequest(name, count, True) for name, count in zip("abc", (a, b, c), strict=True)]
    return [PlacementRequest("s", 2, False), *stateful]


def used(homes, nodes):
    return [sum(place == node for name in "abc" for place in homes[name]) for node in range(nodes)]


@pytest.mark.parametrize("placement", PLANNED)
@pytest.mark.parametrize("free", [[4, 4], [2, 6, 0, 3], [1, 1, 1, -2], [9]])
def test_placement_at_submit_never_shares_slots_that_suffice(placement, free):
    wanted = requests(2, 3, 1)
    spread = place(wanted, free)
    homes = initial_homes(placement, FLOWS, spread, free)
    assert homes == initial_homes(placement, FLOWS, spread, free)
    placed = place(wanted, free, homes)
    assert placed.oversubscribed == spread.oversubscribed
    assert homes["s"] == placed.homes["s"]
    assert placement in ("albic", "cola") or homes["s"] == spread.homes["s"]
    if not spread.oversubscribed:
        counts = used(placed.homes, len(free))
        assert all(count <= slots for count, slots in zip(counts, free, strict=True))


@given(
    st.tuples(*[st.integers(1, 4)] * 3),
    st.lists(st.integers(-1, 5), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
)
def test_wanted_homes_never_take_slots_twice_that_spreading_would_not(counts, free, wanted):
    homes = {"a": [node % len(free) for node in wanted]}
    placed, spread = place(requests(*counts), free, homes), place(requests(*counts), free)
    assert placed.oversubscribed == spread.oversubscribed
    assert {name: len(one) for name, one in placed.homes.items()} == {n: len(one) for n, one in spread.homes.items()}
    assert all(
        cores[home] >= 1 for name in "abc" for cores, home in zip(placed.cores[name], placed.homes[name], strict=True)
    )


@pytest.mark.parametrize("placement", [name for name in PLANNED if kind_of_placement(name) != "placement"])
@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.integers(1, 5)] * 3), st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_consecutive_placements_give_each_node_consecutive_executors(placement, counts, free):
    spread = place(requests(*counts), free)
    homes = initial_homes(placement, FLOWS, spread, free)
    order = [node for name in "abc" for node in homes[name]]
    if any(slots > 0 for slots in free):
        changes = [node for at, node in enumerate(order) if at == 0 or order[at - 1] != node]
        assert len(changes) == len(set(changes))
        assert all(free[node] > 0 for node in order)


def test_cola_places_each_of_two_pipelines_on_one_node():
    flows = [ComponentFlow("s1"), ComponentFlow("s2")]
    flows += [
        ComponentFlow(f"{name}{pipe}", (f"s{pipe}" if name == "a" else f"a{pipe}",)) for pipe in (1, 2) for name in "ab"
    ]
    wanted = [PlacementRequest(f"s{pipe}", 1, False) for pipe in (1, 2)]
    wanted += [PlacementRequest(f"{name}{pipe}", 2, True) for name in "ab" for pipe in (1, 2)]
    spread = place(wanted, [4, 4])
    homes = initial_homes("cola", flows, spread, [4, 4])
    first, second = ({node for name in "sab" for node in homes[f"{name}{pipe}"]} for pipe in (1, 2))
    assert len(first) == len(second) == 1
    assert first != second


def test_declared_rates_balance_operators_of_different_load():
    flows = [ComponentFlow("s1", rate=3_000.0), ComponentFlow("s2", rate=1_000.0)]
    flows += [ComponentFlow("a", ("s1",)), ComponentFlow("b", ("s2",)), ComponentFlow("c", ("s2",))]
    wanted = [PlacementRequest(name, 1, False) for name in ("s1", "s2")]
    wanted += [PlacementRequest(name, 1, True) for name in "abc"]
    homes = initial_homes("milp", flows, place(wanted, [9, 9]), [9, 9])
    assert homes["b"] == homes["c"] != homes["a"]


def test_without_free_slots_homes_are_spread():
    spread = place(requests(1, 1, 1), [0, -1])
    assert initial_homes("milp", FLOWS, spread, [0, -1]) == spread.homes
