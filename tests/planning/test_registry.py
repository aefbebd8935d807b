from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from dask_elastic.planning.check import validate
from dask_elastic.planning.problem import Placement, PlacementProblem
from dask_elastic.planning.registry import names, planner
from dask_elastic.testing.planners import check_planner, check_rest, problems
from dask_elastic.vocab.errors import InvalidPlan, PlanningError, UnknownPlanner


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("seed", range(3))
def test_every_planner_keeps_the_contract(name, seed):
    for problem in problems(seed, count=25):
        check_planner(planner(name), problem, seed)


@pytest.mark.parametrize("name", names())
def test_there_may_be_nothing_to_plan(name):
    empty = PlacementProblem([], np.zeros(0, dtype=np.int64), 2)
    assert planner(name).plan(empty).bin.tolist() == []
    idle = PlacementProblem([0, 0], [0, 0], 2)
    validate(idle, planner(name).plan(idle))
    single = PlacementProblem([3, 1], [0, 0], 1)
    assert planner(name).plan(single).moves == 0


@pytest.mark.parametrize("name", names())
def test_every_planner_tells_where_it_is_from(name):
    assert planner(name).__doc__
    assert "Notes" in type(planner(name)).__doc__


@pytest.mark.parametrize("name", names())
def test_an_unknown_option_is_refused(name):
    with pytest.raises(PlanningError, match=f"planner '{name}' has no option 'speed'") as caught:
        planner(name, speed=3)
    assert all(field.name in str(caught.value) for field in fields(planner(name)))


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownPlanner, match=f"no planner is named 'fluks': choose one of {', '.join(names())}"):
        planner("fluks")


class Faulty:
    def __init__(self, answer):
        self.answer = answer

    def objective(self, problem, bin, seed=0):
        return (float(problem.shares(bin).max()),)

    def plan(self, problem, seed=0):
        return self.answer(problem)


def test_the_kit_finds_what_is_wrong():
    problem = PlacementProblem([1, 1], [0, 1], 2)
    with pytest.raises(InvalidPlan):
        check_planner(Faulty(lambda problem: Placement([0, 1], 1, 0)), problem)
    with pytest.raises(AssertionError, match=r"goes from \(1.0,\) to \(2.0,\)"):
        check_planner(Faulty(lambda problem: problem.placement(np.array([0, 0]))), problem)
    with pytest.raises(AssertionError, match=r"does not rest: moves \[2, 2, 2\]"):
        check_rest(Faulty(lambda problem: problem.placement(1 - problem.current)), problem, 2)
    answers = iter([problem.placement(np.array(bin)) for bin in ([0, 1], [1, 0])])
    with pytest.raises(AssertionError, match="and then"):
        check_planner(Faulty(lambda problem: next(answers)), problem)
