from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import load_distance, variance
from dask_elastic.vocab.errors import PlanningError


def test_a_pass_moves_one_group_for_each_pair():
    problem = PlacementProblem([5, 4, 3, 3, 2, 1, 0, 0], [0, 0, 1, 1, 1, 2, 3, 3], 4)
    assert Flux(passes=1).plan(problem).bin.tolist() == [3, 0, 2, 1, 1, 2, 3, 3]


def test_the_heaviest_suitable_group_is_moved():
    # Loads 10 and 0: the group of 10 would only swap them.
    assert Flux(passes=1).plan(PlacementProblem([10], [0], 2)).moves == 0
    assert Flux(passes=1).plan(PlacementProblem([7, 3], [0, 0], 2)).bin.tolist() == [1, 0]


def test_repeated_flux_is_better_than_a_single_pass():
    random = np.random.default_rng(1)
    problem = PlacementProblem(random.uniform(1, 2, 100), random.integers(0, 10, 100), 10)
    once, often = Flux(passes=1).plan(problem), Flux().plan(problem)
    assert load_distance(problem, often.bin) < 0.3 * load_distance(problem, once.bin)


def test_flux_weights_loads_by_capacity():
    problem = PlacementProblem(np.ones(30), np.zeros(30, dtype=int), 2, capacity=[10, 20])
    assert np.bincount(Flux().plan(problem).bin).tolist() == [10, 20]


def test_flux_drains_before_it_balances():
    problem = PlacementProblem([5, 5, 1, 1], [0, 0, 1, 1], 3, draining=[1], max_moves=2)
    assert Flux().plan(problem).bin.tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("seed", range(3))
def test_flux_is_independent_of_group_and_bin_numbers(seed):
    random = np.random.default_rng(seed)
    load, current = random.uniform(1, 9, 20), random.integers(0, 4, 20)
    groups, bins = random.permutation(20), random.permutation(4)
    one = PlacementProblem(load, current, 4)
    other = PlacementProblem(load[groups], bins[current][groups], 4)
    first, second = Flux().plan(one).bin, Flux().plan(other).bin
    assert (bins[first][groups] == second).all()
    assert variance(one, first) == pytest.approx(variance(other, second))


def test_invalid_number_of_flux_passes_is_refused():
    with pytest.raises(PlanningError, match="passes is 0"):
        Flux(passes=0)
