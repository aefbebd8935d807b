from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.eager import Eager
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.vocab.errors import PlanningError


def fine_problem(seed, **change):
    random = np.random.default_rng(seed)
    return PlacementProblem(random.uniform(0.5, 1.5, 400), random.integers(0, 8, 400), 8, **change)


@pytest.mark.parametrize("seed", range(5))
def test_eager_brings_all_loads_into_the_range(seed):
    problem = fine_problem(seed)
    shares = problem.shares(Eager().plan(problem).bin)
    assert shares.max() <= 1.1 * problem.mean
    assert shares.min() >= 0.9 * problem.mean


def test_eager_moves_nothing_within_the_range():
    problem = PlacementProblem([10, 11], [0, 1], 2)
    assert Eager().plan(problem).moves == 0
    assert Eager(lower=8, upper=13).plan(problem).moves == 0


def test_groups_leave_overloaded_bins_only():
    problem = fine_problem(1)
    placement = Eager().plan(problem)
    moved = problem.moved(placement.bin)
    shares = problem.shares(problem.current)
    assert moved.any()
    assert (shares[problem.current[moved]] > problem.mean).all()
    assert (shares[placement.bin[moved]] <= problem.mean).all()


def test_a_group_above_the_threshold_stays():
    # min(l − mean, (u − v) / 2) = min(2, 0.5): the groups of 1 stay, the one of 0.4 goes.
    problem = PlacementProblem([1] * 6 + [0.4] + [1, 1, 0.4], [0] * 7 + [1] * 3, 2)
    placement = Eager(lower=3.9, upper=4.9).plan(problem)
    assert np.flatnonzero(problem.moved(placement.bin)).tolist() == [6]


def test_a_range_above_the_mean_empties_the_least_loaded_bin():
    problem = fine_problem(2)
    mean = problem.mean
    placement = Eager(lower=1.9 * mean, upper=2.1 * mean).plan(problem)
    validate(problem, placement)
    shares = problem.shares(placement.bin)
    used = shares > 0
    assert used.sum() == 4
    assert set(np.flatnonzero(used)) == set(np.argsort(problem.shares(problem.current))[4:])
    assert shares[used].max() <= 2.1 * mean


def test_eager_moves_largest_groups_first_within_budget():
    problem = fine_problem(3, max_moves=5)
    placement = Eager().plan(problem)
    assert placement.moves == 5
    assert problem.load[problem.moved(placement.bin)].min() > 1


@pytest.mark.parametrize("ends", [(1, None), (None, 1), (2, 1), (-1, 1), (1, 1)])
def test_invalid_eager_range_is_refused(ends):
    with pytest.raises(PlanningError, match=r"lower is .*, upper .*: give"):
        Eager(*ends)
