from __future__ import annotations

import itertools
import time
from dataclasses import replace

import highspy
import numpy as np
import pytest

from dask_elastic.planning.check import validate
from dask_elastic.planning.flux import Flux
from dask_elastic.planning.milp import Milp
from dask_elastic.planning.problem import PlacementProblem
from dask_elastic.planning.quality import load_distance
from dask_elastic.testing.planners import problems
from dask_elastic.vocab.errors import InvalidPlan, PlanningError


def allowed(problem):
    for bins in itertools.product(range(problem.bins), repeat=problem.groups):
        placement = problem.placement(np.array(bins))
        try:
            validate(problem, placement)
        except InvalidPlan:
            continue
        yield placement.bin


def paper_setting(seed, bins=20, groups=400, varies=40.0, **budget):
    """Section 5.1: loads around a mean of 50 %, and a fifth of the nodes raised or lowered."""
    random = np.random.default_rng(seed)
    each = groups // bins
    load = 50 / each * (1 + random.uniform(-0.05, 0.05, groups))
    current = np.repeat(np.arange(bins), each)
    for number, node in enumerate(random.permutation(bins)[: bins // 5]):
        some = random.permutation(np.flatnonzero(current == node))[: each // 2]
        load[some] += (1 if number % 2 else -1) * 0.5 * varies / len(some)
    return PlacementProblem(np.maximum(load, 0), current, bins, **budget)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_optimal_where_all_is_tried(seed):
    for problem in problems(seed, count=25, groups=6, bins=3):
        placement = Milp().plan(problem)
        if problem.draining.any() or not placement.proven:
            continue
        best = min(load_distance(problem, bin) for bin in allowed(problem))
        assert load_distance(problem, placement.bin) == pytest.approx(best, rel=1e-4, abs=1e-6 * max(problem.mean, 1))


def test_small_problems_are_proven():
    answers = [Milp().plan(problem) for problem in problems(9, count=30, groups=6, bins=3)]
    assert sum(answer.proven for answer in answers) >= 27


@pytest.mark.parametrize("budget", [{"max_moves": 10}, {"max_moves": 40}, {}])
@pytest.mark.parametrize("passes", [1, None])
def test_it_is_never_worse_than_flux(budget, passes):
    for seed in range(2):
        problem = paper_setting(seed, **budget)
        placement = Milp(time_limit=0.3).plan(problem)
        validate(problem, placement)
        flux = load_distance(problem, Flux(passes=passes).plan(problem).bin)
        assert load_distance(problem, placement.bin) <= flux


def test_its_margin_is_large_where_the_budget_does_not_bind():
    problem = paper_setting(3)
    flux, milp = Flux().plan(problem), Milp(time_limit=0.3).plan(problem)
    assert load_distance(problem, milp.bin) < 0.1 * load_distance(problem, flux.bin)


def test_it_is_back_within_its_limit():
    problem = paper_setting(1, bins=40, groups=800)
    began = time.perf_counter()
    placement = Milp(time_limit=1.0).plan(problem)
    validate(problem, placement)
    assert time.perf_counter() - began < 5


def test_a_limit_of_nothing_still_gives_an_answer():
    problem = paper_setting(2, max_moves=20)
    for limits in ({"time_limit": 0.0}, {"time_limit": None, "node_limit": 0}):
        placement = Milp(**limits).plan(problem)
        validate(problem, placement)
        assert load_distance(problem, placement.bin) < load_distance(problem, problem.current)


def test_a_solver_that_fails_does_no_harm(monkeypatch):
    problem = paper_setting(2, bins=5, groups=50, max_moves=5)
    monkeypatch.setattr(highspy.Highs, "run", lambda self: highspy.HighsStatus.kError)
    placement = Milp().plan(problem)
    validate(problem, placement)
    assert not placement.proven
    assert load_distance(problem, placement.bin) <= load_distance(problem, Flux().plan(problem).bin)


def test_a_budget_of_cost_is_kept_and_used():
    problem = PlacementProblem([4, 4, 4, 4], [0, 0, 0, 0], 2, state_bytes=[9, 1, 2, 30], max_cost=3)
    placement = Milp().plan(problem)
    assert placement.bin.tolist() == [0, 1, 1, 0]
    assert placement.cost == 3
    assert placement.proven


def test_other_resources_are_limited():
    # Memory, the second, lets only one of the two heavy ones go.
    load = [[30, 10], [30, 60], [10, 10], [10, 10]]
    problem = PlacementProblem(load, [0, 0, 0, 0], 2, capacity=[[100, 200], [100, 45]])
    placement = Milp().plan(problem)
    validate(problem, placement)
    assert problem.bottleneck == 0
    assert problem.shares(placement.bin).tolist() == [0.4, 0.4]
    assert placement.bin[1] == 0


def test_capacities_are_weights():
    problem = PlacementProblem(np.ones(30), np.zeros(30, dtype=int), 2, capacity=[10, 20])
    assert np.bincount(Milp().plan(problem).bin).tolist() == [10, 20]


def test_nodes_are_emptied_in_rounds():
    problem = paper_setting(4, bins=6, groups=60, max_moves=6, draining=[0, 1])
    left = [problem.to_drain(problem.current)]
    for _ in range(12):
        placement = Milp(time_limit=0.4).plan(problem)
        validate(problem, placement)
        problem = replace(problem, current=placement.bin)
        left.append(problem.to_drain(problem.current))
    assert left[-1] == 0
    assert sorted(left, reverse=True) == left


def test_pinned_groups_stay():
    problem = PlacementProblem([6, 2, 2, 2], [0, 0, 0, 0], 2, pinned=[0])
    assert Milp().plan(problem).bin.tolist() == [0, 1, 1, 1]


def test_a_group_that_stands_for_several_counts_as_several():
    problem = PlacementProblem([6, 2, 2, 2], [0, 0, 0, 0], 2, size=[4, 1, 1, 1], max_moves=3)
    placement = Milp().plan(problem)
    assert placement.bin.tolist() == [0, 1, 1, 1]
    assert placement.moves == 3


def test_numbers_of_groups_and_bins_do_not_matter():
    random = np.random.default_rng(5)
    load, current = random.uniform(1, 9, 14), random.integers(0, 3, 14)
    groups, bins = random.permutation(14), random.permutation(3)
    one = PlacementProblem(load, current, 3, max_moves=4)
    other = PlacementProblem(load[groups], bins[current][groups], 3, max_moves=4)
    first, second = Milp().plan(one), Milp().plan(other)
    assert first.proven
    assert second.proven
    assert load_distance(one, first.bin) == pytest.approx(load_distance(other, second.bin), rel=1e-5)


@pytest.mark.parametrize(("option", "value"), [("time_limit", -1), ("node_limit", -1), ("gap", 1), ("gap", -0.1)])
def test_options_are_checked(option, value):
    with pytest.raises(PlanningError, match=f"{option} is {value}"):
        Milp(**{option: value})
