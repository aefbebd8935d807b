from __future__ import annotations

import math

import numpy as np
import pytest

from dask_elastic.planning.placement.packing import packed
from dask_elastic.planning.placement.problem import PlacementProblem


def greedy(size, strength, live):
    """Heaviest first onto the bin that is least loaded, or would be with the part where strengths differ."""
    shares, place = np.where(live, 0.0, np.inf), np.zeros(len(size), dtype=int)
    for part in np.argsort(-size, kind="stable").tolist():
        place[part] = int(np.argmin(shares))
        shares[place[part]] += size[part] / strength[place[part]]
    return place


@pytest.mark.parametrize("parts", [3, 7, 30, 200])
@pytest.mark.parametrize("rounding", [0.0, 1e-15])
def test_parts_go_heaviest_first_to_the_least_loaded_of_equal_bins(parts, rounding):
    random = np.random.default_rng(parts)
    size = random.uniform(1, 5, parts)
    capacity = 100.0 * (1 + rounding * np.arange(8))
    problem = PlacementProblem(size, np.full(parts, 2), 8, capacity=capacity, draining=[1, 5])
    found = packed(problem, np.arange(parts), size, math.inf)
    assert found.tolist() == greedy(size, np.ones(8), problem.live).tolist()


def test_stronger_bins_get_more():
    size = np.random.default_rng(0).uniform(1, 2, 300)
    problem = PlacementProblem(size, np.zeros(300, dtype=int), 3, capacity=[100.0, 200.0, 700.0])
    shares = problem.shares(packed(problem, np.arange(300), size, math.inf))
    assert np.ptp(shares) < 0.02 * shares.mean()


@pytest.mark.parametrize("capacity", [None, [9.0, 16.0]])
def test_packing_is_given_up_where_a_bin_must_be_overfull(capacity):
    problem = PlacementProblem([3.0, 3.0, 3.0], [0, 0, 0], 2, capacity=capacity)
    most = 0.9 * 6 / (1 if capacity is None else 16)
    assert packed(problem, np.arange(3), problem.weight, most) is None


def test_groups_of_a_part_get_one_bin():
    problem = PlacementProblem([1.0] * 6, [0] * 6, 2)
    label = np.array([0, 1, 2, 0, 1, 2])
    found = packed(problem, label, np.full(3, 2.0), math.inf)
    assert [len(set(found[label == part].tolist())) for part in range(3)] == [1, 1, 1]
