"""The baselines that look at numbers of groups rather than at loads."""

from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.planning.placement.consistent_hash import ConsistentHash, ring
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import imbalance, variance
from dask_elastic.planning.placement.redist import Redist
from dask_elastic.planning.placement.storm import Storm
from dask_elastic.planning.placement.universal_hash import UniversalHash
from dask_elastic.testing.planners import check_renumbering, problems, without_ties
from dask_elastic.vocab.errors import PlanningError


def unplaced(groups, bins, **change):
    return PlacementProblem(np.ones(groups), np.full(groups, -1), bins, **change)


def test_added_bin_takes_groups_without_moving_others():
    four = ring(unplaced(1000, 5, draining=[4]), 100, seed=1)
    five = ring(unplaced(1000, 5), 100, seed=1)
    assert ((four == five) | (five == 4)).all()
    assert 120 < (five == 4).sum() < 280


def test_a_ring_gives_a_stronger_bin_more():
    counts = np.bincount(ring(unplaced(2000, 3, capacity=[4000, 1000, 1000]), 200, seed=0))
    assert 2.8 < counts[0] / counts[1:].mean() < 5.5


def test_seed_determines_the_ring():
    problem = unplaced(100, 4)
    assert (ring(problem, 100, 0) != ring(problem, 100, 1)).any()
    assert (ring(problem, 100, 0) == ring(problem, 100, 0)).all()


def test_storm_evens_out_counts_in_intervals():
    problem = PlacementProblem(np.ones(10), np.array([0] * 9 + [1]), 3, operator=[0] * 4 + [1] * 6)
    bin = Storm().plan(problem).bin
    for part, counts in ((bin[:4], [1, 1, 2]), (bin[4:], [2, 2, 2])):
        assert sorted(np.bincount(part, minlength=3)) == counts
        assert (np.diff(part) != 0).sum() == 2


def test_a_function_that_balances_worse_is_not_taken():
    problem = PlacementProblem(np.ones(16), np.arange(16) % 4, 4)
    assert UniversalHash().plan(problem).moves == 0


def test_more_draws_never_balance_worse():
    problem = PlacementProblem(np.random.default_rng(0).uniform(0, 1, 50), np.zeros(50, dtype=int), 5)
    one, many = (UniversalHash(draws=draws).plan(problem, seed=3).bin for draws in (1, 20))
    assert variance(problem, many) <= variance(problem, one)


def test_redist_balances_better_than_the_ring():
    random = np.random.default_rng(2)
    load = 1 / np.arange(1, 201) ** 0.9
    problem = PlacementProblem(load, random.integers(0, 8, 200), 8)
    balanced = Redist(tracked=64).plan(problem)
    assert imbalance(problem, balanced.bin) < 1.3
    assert imbalance(problem, ConsistentHash().plan(problem).bin) > 1.5


def test_a_heavy_group_stays_where_there_is_room():
    problem = PlacementProblem([5, 5, 5, 5], [0, 0, 1, 1], 2)
    assert Redist().plan(problem).moves == 0


@pytest.mark.parametrize("seed", range(6))
def test_redist_with_all_groups_in_its_table_follows_no_number(seed):
    planner = Redist(tracked=1_000)
    # All numbers may change now.
    object.__setattr__(planner, "by_number", ())
    for problem in problems(seed, count=30):
        check_renumbering(planner, without_ties(problem, seed), seed)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConsistentHash(replicas=0), "replicas is 0"),
        (lambda: UniversalHash(draws=0), "draws is 0"),
        (lambda: Redist(tracked=-1), "tracked is -1"),
        (lambda: Redist(threshold=0.9), "threshold is 0.9"),
        (lambda: Redist(replicas=0), "replicas is 0"),
    ],
)
def test_options_are_checked(make, message):
    with pytest.raises(PlanningError, match=message):
        make()
