from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.papers.workloads.node_loads import SIZES, Size, varied_nodes
from dask_elastic.planning.placement import neighbourhood
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.neighbourhood import improve
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.program import BALANCE_FIRST, DRAIN_FIRST, Limits
from dask_elastic.planning.placement.quality import load_distance
from dask_elastic.testing.planners import problems

FEW_NODES = Limits(seconds=None, nodes=5)


@pytest.mark.parametrize("weights", [BALANCE_FIRST, DRAIN_FIRST])
@pytest.mark.parametrize("seed", range(3))
def test_neighbourhood_search_is_valid_and_no_worse(seed, weights):
    for problem in problems(seed, count=2, groups=40, bins=9):
        start = Flux().plan(problem).bin
        found, _ = improve(problem, start, weights, FEW_NODES, seed)
        validate(problem, problem.placement(found))
        assert load_distance(problem, found) <= load_distance(problem, start) * (1 + 1e-6)
        assert problem.to_drain(found) <= problem.to_drain(start)


def test_neighbourhood_search_gets_far_below_flux_where_the_budget_binds():
    problem = varied_nodes(1, SIZES[0], varies=60.0, max_moves=30)
    start = Flux().plan(problem).bin
    found, _ = improve(problem, start, BALANCE_FIRST, FEW_NODES, 0)
    assert load_distance(problem, found) < 0.7 * load_distance(problem, start)
    assert problem.placement(found).moves <= 30


def test_neighbourhood_search_without_clock_is_deterministic():
    problem = varied_nodes(2, Size(8, 80, 4), varies=40.0, max_moves=8)
    start = Flux().plan(problem).bin
    one, two = (improve(problem, start, BALANCE_FIRST, FEW_NODES, seed=7)[0] for _ in range(2))
    assert one.tolist() == two.tolist() != start.tolist()


def test_neighbourhood_search_with_no_time_changes_nothing():
    problem = varied_nodes(2, SIZES[0], max_moves=20)
    start = Flux().plan(problem).bin
    found, spent = improve(problem, start, BALANCE_FIRST, Limits(seconds=0.0), 0)
    assert found.tolist() == start.tolist()
    assert spent == 0


def test_of_very_many_groups_some_are_free_at_a_time(monkeypatch):
    # One part, whose nodes are limited, not its seconds: on a busy machine, a second is too short for it.
    monkeypatch.setattr(neighbourhood, "_MOST", 1 / 3)
    random = np.random.default_rng(0)
    load = random.pareto(2.0, 20_000)
    problem = PlacementProblem(load, random.integers(0, 3, 20_000), 3, max_moves=50)
    start = problem.current
    found, _ = improve(problem, start, BALANCE_FIRST, Limits(seconds=None, nodes=1), 0)
    validate(problem, problem.placement(found))
    assert load_distance(problem, found) < load_distance(problem, start)
