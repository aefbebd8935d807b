"""The contract of all planners, on problems that hypothesis makes and makes small where one breaks it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.registry import names, planner
from dask_elastic.testing.planners import check_planner

LOADS = st.one_of(st.integers(0, 9).map(float), st.floats(0.01, 100, allow_nan=False))
EXAMPLES = {"albic": 12, "milp": 20}


@st.composite
def placement_problems(draw):
    """Problems of all kinds: new groups, budgets, capacities, bins that drain, traffic, history, two resources."""
    groups, bins = draw(st.integers(1, 9)), draw(st.integers(1, 4))

    def several(numbers, count=groups):
        return draw(st.lists(numbers, min_size=count, max_size=count))

    def perhaps(make):
        return make() if draw(st.booleans()) else None

    def traffic():
        pairs = draw(st.dictionaries(st.tuples(*[st.integers(0, groups - 1)] * 2), st.integers(1, 20), max_size=12))
        matrix = np.zeros((groups, groups))
        for pair, rate in pairs.items():
            matrix[pair] = rate
        return matrix

    load = np.array(several(LOADS))
    if draw(st.integers(0, 4)) == 0:
        load = np.stack([load, several(LOADS)], axis=1)
    return PlacementProblem(
        load,
        np.array(several(st.integers(-1 if draw(st.booleans()) else 0, bins - 1))),
        bins,
        state_bytes=perhaps(lambda: several(st.integers(0, 1000))),
        capacity=perhaps(lambda: several(st.floats(1, 100), bins)),
        draining=perhaps(lambda: sorted(draw(st.sets(st.integers(0, bins - 1), max_size=bins - 1))) or None),
        traffic=perhaps(traffic),
        operator=perhaps(lambda: several(st.integers(0, 2))),
        history=perhaps(lambda: [several(LOADS) for _ in range(3)]),
        max_moves=perhaps(lambda: draw(st.integers(0, groups))),
        max_cost=perhaps(lambda: draw(st.integers(0, 3000))),
    )


@pytest.mark.parametrize("name", names("placement"))
def test_every_planner_keeps_the_contract_on_what_hypothesis_makes(name):
    @settings(max_examples=EXAMPLES.get(name, 40), deadline=None, suppress_health_check=list(HealthCheck))
    @given(placement_problems(), st.integers(0, 3))
    def contract(problem, seed):
        check_planner(planner(name), problem, seed)

    contract()


@pytest.mark.parametrize("name", ["consistent-hash", "storm"])
def test_groups_without_load_may_go_to_a_full_bin(name):
    # No bin can bear the new group; the others follow it in the first round, not in the second.
    load, current = [0, 0, 0, 0, 0, 0, 0, 3, 0], [0, 0, 0, 0, 0, 0, 0, -1, 0]
    check_planner(planner(name), PlacementProblem(load, current, 3, capacity=[1, 1, 2]), seed=0)
