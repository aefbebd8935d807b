from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.placement.albic import Albic
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import collocation, load_distance
from dask_elastic.testing.planners import renumbered
from dask_elastic.vocab.errors import PlanningError


def one_to_one(groups=24, bins=4, **change):
    half = groups // 2
    send = 10.0 + np.arange(half)
    traffic = sp.coo_matrix((send, (np.arange(half), half + (np.arange(half) + 1) % half)), (groups, groups))
    operator, current = np.repeat([0, 1], half), np.arange(groups) % bins
    return PlacementProblem(np.full(groups, 5.0), current, bins, traffic=traffic, operator=operator, **change)


def test_collocation_rises_round_by_round_within_budget_and_bound():
    problem = one_to_one(max_moves=3)
    seen = [collocation(problem, problem.current)]
    for number in range(40):
        placement = Albic().plan(problem, seed=number)
        validate(problem, placement)
        assert load_distance(problem, placement.bin) <= 0.2 * problem.mean + 1e-9
        problem = replace(problem, current=placement.bin)
        seen.append(collocation(problem, problem.current))
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] > 0.8


def test_collocation_starts_with_pair_of_most_traffic():
    problem = one_to_one(max_moves=2)
    bin = Albic().plan(problem).bin
    assert bin[11] == bin[12]


def test_pairs_that_share_a_bin_move_as_one():
    # Bin 0 is too full by a pair, and has two.
    traffic = sp.coo_matrix(([9.0, 9.0], ([0, 1], [2, 3])), (6, 6))
    problem = PlacementProblem([1, 1, 1, 1, 0.1, 0.1], [0, 0, 0, 0, 1, 1], 2, traffic=traffic)
    placement = Albic(max_part=1.0).plan(problem)
    assert collocation(problem, placement.bin) == 1
    assert load_distance(problem, placement.bin) <= 0.2 * problem.mean


def test_parts_are_shrunk_until_the_bound_is_kept():
    # All talk to all on one bin: only single groups balance.
    traffic = np.ones((8, 8)) - np.eye(8)
    problem = PlacementProblem(np.ones(8), np.zeros(8, dtype=int), 8, traffic=traffic)
    placement = Albic(max_distance=0.1, max_part=8.0, step=4.0, score=0.5).plan(problem)
    assert load_distance(problem, placement.bin) == 0


@pytest.mark.parametrize("seed", range(5))
def test_other_numbers_of_groups_and_bins_reach_the_same_bound(seed):
    random = np.random.default_rng(seed)
    problem = one_to_one(max_moves=4, draining=[seed % 4] if seed else None)
    problem = replace(problem, load=random.uniform(3, 7, 24))
    other = renumbered(problem, random.permutation(24), random.permutation(4))
    # With a limit of time, the answers would depend on the machine.
    albic = Albic(time_limit=None)
    first, second = albic.plan(problem, seed), albic.plan(other, seed)
    for one, two in zip(*(albic.objective(p, x.bin)[:2] for p, x in ((problem, first), (other, second))), strict=True):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-6)


def test_infeasible_pair_does_not_end_improvement():
    # The two that send most have too much state for the budget; and two of the others too much load for one bin.
    traffic = sp.coo_matrix(([9.0, 8.0, 7.0], ([0, 2, 4], [1, 3, 5])), (6, 6))
    state = [100, 100, 1, 1, 1, 1]
    load = [1, 1, 5, 5, 1, 1]
    problem = PlacementProblem(load, [0, 1, 0, 1, 0, 1], 2, state_bytes=state, traffic=traffic, max_cost=10)
    placement = Albic().plan(problem)
    validate(problem, placement)
    assert placement.bin[4] == placement.bin[5]


def test_rounds_share_one_time_limit(slowness):
    random = np.random.default_rng(1)
    traffic = sp.random_array((300, 300), density=0.05, rng=random)
    problem = PlacementProblem(random.pareto(1.0, 300), np.arange(300) % 12, 12, traffic=traffic, max_moves=30)
    # Others share the machine: what counts is the time that it had.
    began = time.process_time()
    validate(problem, Albic(max_distance=0.0, time_limit=1.0).plan(problem))
    assert time.process_time() - began < 1 + 3 * slowness()


def test_group_is_never_pinned_to_a_draining_bin():
    problem = one_to_one(draining=[3], max_moves=4)
    for _ in range(12):
        placement = Albic().plan(problem)
        validate(problem, placement)
        problem = replace(problem, current=placement.bin)
    assert problem.to_drain(problem.current) == 0


@pytest.mark.parametrize("seed", range(1, 12, 2))
def test_pairs_without_gain_do_not_prevent_draining(seed):
    random = np.random.default_rng(seed)
    operator, traffic = np.arange(30) // 10, np.zeros((30, 30))
    for group in range(20):
        below = 10 * (operator[group] + 1)
        traffic[group, below + random.integers(10)] = random.uniform(5, 10)
        traffic[group, below : below + 10] += 0.1
    problem = PlacementProblem(
        random.uniform(1, 3, 30), np.arange(30) % 5, 5, random.uniform(1, 9, 30),
        traffic=traffic, operator=operator, max_moves=4, draining=[2],
    )  # fmt: skip
    for number in range(8):
        problem = replace(problem, current=Albic().plan(problem, number).bin)
    assert problem.to_drain(problem.current) == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_distance", -1), ("max_part", -1), ("step", 0), ("score", -2), ("time_limit", -1), ("node_limit", -1)],
)
def test_options_are_checked(option, value):
    with pytest.raises(PlanningError, match=f"{option} is {value}"):
        Albic(**{option: value})
