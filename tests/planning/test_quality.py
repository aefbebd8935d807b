from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.planning.placement import quality
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.vocab.errors import PlanningError


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=20))
def test_without_capacities_they_are_the_papers(groups):
    load, bin = (np.array(column) for column in zip(*groups, strict=True))
    problem = PlacementProblem(load, bin, 4)
    loads = np.array([load[bin == one].sum() for one in range(4)], dtype=float)
    assert quality.load_distance(problem, bin) == pytest.approx(np.abs(loads - loads.mean()).max())
    assert quality.variance(problem, bin) == pytest.approx(np.var(loads))
    assert quality.imbalance(problem, bin) == pytest.approx(loads.max() / loads.mean() if loads.any() else 1)


def test_bins_that_drain_have_no_part_in_balance():
    problem = PlacementProblem([6, 2, 4], [0, 1, 2], 3, draining=[0])
    assert problem.mean == 6
    assert quality.load_distance(problem, problem.current) == 4
    assert quality.load_distance(problem, np.array([1, 2, 2])) == 0


def test_loads_are_shares_of_capacity():
    problem = PlacementProblem([20, 40], [0, 1], 2, capacity=[100, 200])
    assert quality.load_distance(problem, problem.current) == pytest.approx(0)
    assert quality.imbalance(problem, problem.current) == pytest.approx(1)
    assert quality.variance(problem, np.array([1, 1])) == pytest.approx((100 * 0.2**2 + 200 * 0.1**2) / 300)


def test_traffic_within_bins():
    traffic = sp.coo_matrix(([3.0, 1.0], ([0, 1], [1, 2])), shape=(3, 3))
    problem = PlacementProblem([1, 1, 1], [0, 1, 1], 2, traffic=traffic)
    assert quality.collocation(problem, problem.current) == 0.25
    assert quality.collocation(problem, np.array([0, 0, 0])) == 1
    assert quality.load_index(problem, problem.current) == 1
    assert quality.load_index(problem, np.array([0, 0, 0])) == pytest.approx(1 / 1.75)
    assert quality.load_index(problem, np.array([0, 0, 0]), communication=0) == 1


def test_groups_without_a_bin_are_not_collocated():
    problem = PlacementProblem([1, 1], [-1, -1], 2, traffic=[[0, 1], [0, 0]])
    assert quality.collocation(problem, problem.current) == 0


def test_collocation_without_traffic_is_defined():
    assert quality.collocation(PlacementProblem([1], [0], 1), np.array([0])) == 1
    assert quality.collocation(PlacementProblem([1], [0], 1, traffic=[[0]]), np.array([0])) == 1


MEASURES = [
    quality.load_distance,
    quality.imbalance,
    quality.variance,
    quality.moved_bytes,
    quality.collocation,
    quality.load_index,
]


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_is_a_number_of_a_problem_and_bins(measure):
    problem = PlacementProblem([4, 4, 2], [0, 0, 1], 2, state_bytes=[1, 2, 3], traffic=np.eye(3)[[1, 2, 0]])
    assert isinstance(measure(problem, problem.current), float)
    assert measure(problem, [0, 1, 1]) == measure(problem, np.array([0, 1, 1]))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("bin", "message"),
    [
        ([0, 2, 1], "bin of group 1 is 2: give −1 to 1"),
        ([0, 1], r"bin has shape \(2,\)"),
        ([0.0, 1, 1], "bin has type"),
    ],
)
def test_quality_with_invalid_bins_names_them(measure, bin, message):
    problem = PlacementProblem([4, 4, 2], [0, 0, 1], 2, traffic=np.eye(3))
    with pytest.raises(PlanningError, match=message):
        measure(problem, bin)


def test_moved_bytes_count_what_had_a_bin():
    problem = PlacementProblem([1, 1, 1], [0, 1, -1], 2, state_bytes=[5, 7, 9])
    assert quality.moved_bytes(problem, [1, 1, 0]) == 5


def test_what_communication_costs_is_checked():
    with pytest.raises(PlanningError, match="communication is -1"):
        quality.load_index(PlacementProblem([1], [0], 1), [0], communication=-1)


def test_rounding_noise_is_no_improvement():
    assert not quality.better((1.0,), (1.0 + 1e-12,))
    assert quality.better((0.5, 9.0), (1.0, 0.0))
