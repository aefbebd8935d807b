from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.albic import Albic
from dask_elastic.planning.check import validate
from dask_elastic.planning.problem import PlacementProblem
from dask_elastic.planning.quality import collocation, load_distance
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


def test_the_pair_with_most_traffic_comes_first():
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


def test_parts_get_smaller_until_the_bound_is_kept():
    # All talk to all on one bin: only single groups balance.
    traffic = np.ones((8, 8)) - np.eye(8)
    problem = PlacementProblem(np.ones(8), np.zeros(8, dtype=int), 8, traffic=traffic)
    placement = Albic(max_distance=0.1, max_part=8.0, step=4.0, score=0.5).plan(problem)
    assert load_distance(problem, placement.bin) == 0


def test_nothing_is_pinned_to_a_draining_bin():
    problem = one_to_one(draining=[3], max_moves=4)
    for _ in range(12):
        placement = Albic().plan(problem)
        validate(problem, placement)
        problem = replace(problem, current=placement.bin)
    assert problem.to_drain(problem.current) == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_distance", -1), ("max_part", -1), ("step", 0), ("score", -2), ("time_limit", -1), ("node_limit", -1)],
)
def test_options_are_checked(option, value):
    with pytest.raises(PlanningError, match=f"{option} is {value}"):
        Albic(**{option: value})
