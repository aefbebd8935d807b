from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.cola import Cola
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import collocation, load_distance
from dask_elastic.vocab.errors import PlanningError


def one_to_one(groups=40, bins=5, seed=0, **change):
    """Two operators; each group of the first sends all to one of the second."""
    random = np.random.default_rng(seed)
    half = groups // 2
    traffic = sp.coo_matrix((np.full(half, 10.0), (np.arange(half), half + random.permutation(half))), (groups, groups))
    operator = np.repeat([0, 1], half)
    current = np.arange(groups) % bins
    return PlacementProblem(np.full(groups, 5.0), current, bins, traffic=traffic, operator=operator, **change)


@pytest.mark.parametrize("seed", range(3))
def test_cola_collocates_pairs_in_one_step(seed):
    problem = one_to_one(seed=seed)
    placement = Cola().plan(problem)
    validate(problem, placement)
    assert collocation(problem, placement.bin) > 0.9
    assert load_distance(problem, placement.bin) <= 0.2 * problem.mean


def test_cola_places_new_groups():
    problem = one_to_one()
    fresh = PlacementProblem(problem.load, np.full(40, -1), 5, traffic=problem.traffic)
    placement = Cola().plan(fresh)
    assert placement.moves == 0
    assert collocation(fresh, placement.bin) > 0.9


def test_invalid_cola_distance_is_refused():
    with pytest.raises(PlanningError, match="max_distance is -1"):
        Cola(max_distance=-1)
