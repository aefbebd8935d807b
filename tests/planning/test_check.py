from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.planning.placement.check import approach, validate
from dask_elastic.planning.placement.problem import Placement, PlacementProblem
from dask_elastic.vocab.errors import InvalidPlan

PLAIN = {"load": [4, 3, 2], "current": [0, 0, 1], "bins": 3, "state_bytes": [40, 30, 20]}


def judged(bin, moves=None, cost=None, **change):
    problem = PlacementProblem(**(PLAIN | change))
    answer = np.array(bin)
    moved = (problem.current >= 0) & (answer != problem.current) if len(answer) == 3 else np.zeros(3, bool)
    moves = int(moved.sum()) if moves is None else moves
    cost = float(problem.state_bytes[moved].sum()) if cost is None else cost
    validate(problem, Placement(answer, moves, cost))


@pytest.mark.parametrize(
    ("bin", "change", "message"),
    [
        ([0, 0], {}, r"bin has shape \(2,\): the problem has 3 groups"),
        ([0, 0, 3], {}, "group 2 is on bin 3"),
        ([0, 0, -1], {}, "group 2 is on bin -1"),
        ([0, 2, 1], {"draining": [2]}, "group 1 goes from bin 0 to bin 2, which is draining"),
        ([0, 0, 2], {"draining": [2], "current": [0, 0, -1]}, "group 2 goes from bin -1 to bin 2, which is draining"),
        ([1, 0, 1], {"draining": [0, 1]}, "group 0 goes from bin 0 to bin 1, which is draining"),
        ([1, 0, 1], {"pinned": [0]}, "group 0 is pinned to bin 0"),
        ([1, 0, 1], {"moves": 2}, "moves is 2: 1 groups"),
        ([1, 0, 1], {"cost": 41.0}, "cost is 41.0: 40.0"),
        ([1, 2, 1], {"max_moves": 1}, "2 groups change their bin: max_moves is 1"),
        ([1, 2, 1], {"max_cost": 69}, "70.0 of state changes its bin: max_cost is 69.0"),
        ([0, 1, 1], {"capacity": [9, 4, 9]}, "bin 1 gets groups and ends with 5.0 of resource 0: it bears 4.0"),
        ([0, 1, 1], {"capacity": [9, 4, 9], "load": [[1, 0], [1, 9], [1, 0]]}, "ends with 9.0 of resource 1"),
    ],
)
def test_broken_rule_of_a_placement_is_refused_by_name(bin, change, message):
    with pytest.raises(InvalidPlan, match=message):
        judged(bin, **change)


@pytest.mark.parametrize(
    ("bin", "change"),
    [
        ([0, 0, 1], {"max_moves": 0, "max_cost": 0, "draining": [0]}),
        ([1, 2, 1], {"max_moves": 2, "max_cost": 70}),
        ([0, 0, 1], {"capacity": [1, 1, 20]}),
        ([2, 2, 2], {"capacity": [1, 1, 1]}),
        ([0, 0, 2], {"current": [0, 0, -1], "max_moves": 0}),
    ],
)
def test_valid_placement_is_accepted(bin, change):
    judged(bin, **change)


def test_approach_applies_moves_up_to_the_limits():
    problem = PlacementProblem([1, 1, 1], [0, 0, 1], 3, max_moves=2, draining=[1])
    assert approach(problem, np.array([2, 2, 2])).tolist() == [2, 0, 2]
    assert approach(problem, np.array([2, 2, 2]), order=[1, 0, 2]).tolist() == [0, 2, 2]


def test_approach_defers_moves_until_there_is_room():
    # Group 0 fits only once group 1 has left.
    problem = PlacementProblem([3, 2, 1], [0, 1, 1], 3, capacity=[4, 4, 4])
    assert approach(problem, np.array([1, 2, 1]), order=[0, 1, 2]).tolist() == [1, 2, 1]


def test_placement_valid_as_a_whole_is_taken_as_a_whole():
    # Neither of the two fits before the other has left.
    problem = PlacementProblem([3, 2], [0, 1], 2, capacity=[4, 4])
    assert approach(problem, np.array([1, 0])).tolist() == [1, 0]
