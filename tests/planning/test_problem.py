from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import Placement, PlacementProblem
from dask_elastic.vocab.errors import PlanningError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load": [1, -1]}, r"load at \(1,\) is -1.0"),
        ({"load": [1, np.nan]}, "load at .* is nan"),
        ({"load": [1, np.inf]}, "load at .* is inf"),
        ({"load": [1, 2, 3]}, r"current has shape \(2,\): it must be \(3,\)"),
        ({"load": np.ones((2, 2, 2))}, "load has shape"),
        ({"load": np.ones((2, 0))}, "load has shape"),
        ({"current": [0, 2]}, "current bin of group 1 is 2: give −1 to 1"),
        ({"current": [-2, 1]}, "current bin of group 0 is -2"),
        ({"current": [0.0, 1.0]}, "current has type float64"),
        ({"bins": 0}, "bins is 0"),
        ({"bins": 2.0}, "bins is 2.0"),
        ({"state_bytes": [1]}, r"state_bytes has shape \(1,\)"),
        ({"state_bytes": [1, -3]}, "state_bytes at .* is -3.0"),
        ({"capacity": [1, 0]}, "capacity of bin 1 is 0"),
        ({"capacity": [1, 1, 1]}, r"capacity has shape \(3,\)"),
        ({"draining": [True]}, r"draining has shape \(1,\)"),
        ({"draining": [2]}, "draining names 2: give 0 to 1"),
        ({"draining": [0.5]}, "draining has shape"),
        ({"draining": [0, 1]}, "all 2 bins are draining"),
        ({"traffic": np.ones((3, 3))}, r"traffic has shape \(3, 3\)"),
        ({"traffic": [[0, -1], [0, 0]]}, "traffic at .* is -1.0"),
        ({"operator": [0]}, "operator has shape"),
        ({"history": np.ones((3, 3))}, r"history has shape \(3, 3\)"),
        ({"history": np.ones((0, 2))}, r"history has shape \(0, 2\)"),
        ({"max_moves": -1}, "max_moves is -1"),
        ({"max_moves": 1.5}, "max_moves is 1.5"),
        ({"max_cost": float("nan")}, "max_cost is nan"),
        ({"max_moves": "many"}, "max_moves is 'many'"),
        ({"max_cost": -0.5}, "max_cost is -0.5"),
        ({"size": [1, -1]}, "size is -1"),
        ({"load": ["a", "b"]}, "load is not an array of numbers"),
        ({"load": [1e308, 1e308]}, "load adds up to more than"),
        ({"state_bytes": [1, np.nan]}, "state_bytes at .* is nan"),
        ({"capacity": [1, np.nan]}, "capacity at .* is nan"),
        ({"current": [[0], [1, 2]]}, "current is not an array of integers"),
        ({"traffic": [["a", 0], [0, 0]]}, "traffic is no matrix of numbers"),
        ({"traffic": [[0, np.nan], [0, 0]]}, "traffic at .* is nan"),
        ({"history": [[1, -2]]}, "history at .* is -2.0"),
        ({"pinned": [True]}, r"pinned has shape \(1,\)"),
    ],
)
def test_invalid_argument_of_a_placement_problem_is_refused_by_name(change, message):
    with pytest.raises(PlanningError, match=message):
        PlacementProblem(**({"load": [1, 2], "current": [0, 1], "bins": 2} | change))


def test_placement_problem_copies_and_freezes_its_arrays():
    load = np.array([1.0, 2.0])
    problem = PlacementProblem(load, [0, 1], 2, draining=[1])
    load[0] = 9
    assert problem.load.tolist() == [1, 2]
    assert problem.draining.tolist() == [False, True]
    with pytest.raises(ValueError, match="read-only"):
        problem.load[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.bins = 3
    assert dataclasses.replace(problem, max_moves=1).max_moves == 1


def test_draining_as_a_mask_is_the_same_as_numbers():
    mask = PlacementProblem([1], [0], 3, draining=[False, True, False])
    numbers = PlacementProblem([1], [0], 3, draining=[1])
    assert mask.draining.tolist() == numbers.draining.tolist()


def test_mean_load_excludes_draining_bins():
    problem = PlacementProblem([3, 5], [0, 1], 3, capacity=[1, 2, 1], draining=[0])
    assert problem.mean == 8 / 3
    assert problem.shares(problem.current).tolist() == [3, 2.5, 0]


def test_the_bottleneck_is_what_is_used_most():
    load = [[1, 50], [2, 10]]
    assert PlacementProblem(load, [0, 1], 2).weight.tolist() == [50, 10]
    scaled = PlacementProblem(load, [0, 1], 2, capacity=[[2, 100], [2, 100]])
    assert scaled.weight.tolist() == [1, 2]


def test_a_bin_that_is_full_already_may_stay_as_full():
    problem = PlacementProblem([5, 1, 1], [0, 1, 2], 3, capacity=[4, 4, 4])
    assert problem.limit[:, 0] == pytest.approx([5, 4, 4])


def test_capacities_do_not_limit_a_total_load_above_them():
    assert np.isinf(PlacementProblem([5, 5], [0, 0], 2, capacity=[1, 2]).limit).all()


def test_draft_counts_its_migration_cost():
    draft = Draft(PlacementProblem([3, 2, 1], [0, 0, -1], 2, state_bytes=[30, 20, 10], max_moves=1))
    assert draft.bin.tolist() == [0, 0, 1]
    assert draft.allows(1, 1)
    draft.move(1, 1)
    assert (draft.moves, draft.cost) == (1, 20)
    assert not draft.allows(0, 1)
    assert draft.allows(2, 0)
    draft.move(1, 0)
    assert (draft.moves, draft.cost) == (0, 0)
    assert draft.allows(0, 1)


def test_groups_without_a_bin_go_where_there_is_room():
    problem = PlacementProblem([3, 2, 2], [0, -1, -1], 3, capacity=[4, 4, 4], draining=[2])
    assert Draft(problem).bin.tolist() == [0, 1, 1]
    assert Draft(problem, wanted=np.array([0, 2, 0])).bin.tolist() == [0, 1, 1]


def test_draft_keeps_pinned_groups():
    draft = Draft(PlacementProblem([3, 2], [0, 0], 2, pinned=[0]))
    assert not draft.allows(0, 1)
    assert draft.allows(1, 1)


def test_draining_stops_at_the_budget():
    draft = Draft(PlacementProblem([3, 2, 1], [0, 0, 0], 3, draining=[0], max_moves=2))
    draft.drain()
    assert draft.bin.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5], 0, 0), "bin has shape"),
        (([[0]], 0, 0), "bin has shape"),
        (([0], -1, 0), "moves is -1"),
        (([0], 0.5, 0), "moves is 0.5"),
        (([0], 0, -3.0), "cost is -3.0"),
        (([0], 0, np.nan), "cost is nan"),
    ],
)
def test_invalid_placement_is_refused_with_its_values(arguments, message):
    with pytest.raises(PlanningError, match=message):
        Placement(*arguments)


def test_infinite_budget_becomes_none():
    problem = PlacementProblem([1], [0], 1, max_moves=np.inf, max_cost=np.inf)
    assert (problem.max_moves, problem.max_cost) == (None, None)


def test_bins_are_checked_against_the_problem():
    problem = PlacementProblem([1, 2], [0, 1], 2)
    assert problem.places([1, -1]).tolist() == [1, -1]
    for bin, message in (([0], r"bin has shape \(1,\)"), ([0, 2], "bin of group 1 is 2"), ([0, 0.5], "bin has type")):
        with pytest.raises(PlanningError, match=message):
            problem.places(bin)
