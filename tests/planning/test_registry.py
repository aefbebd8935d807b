from __future__ import annotations

import importlib
from dataclasses import fields, replace

import numpy as np
import pytest

from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.problem import Placement, PlacementProblem
from dask_elastic.planning.registry import names, planner
from dask_elastic.testing.planners import (
    check_planner,
    check_proven,
    check_renumbering,
    check_rest,
    check_units,
    problems,
)
from dask_elastic.vocab.errors import InvalidPlan, PlanningError, UnknownPlanner

PROBLEMS = {"albic": 6, "milp": 7}
"""Problems for each seed of the planners that solve programs, which takes long."""


@pytest.mark.parametrize("name", names("placement"))
@pytest.mark.parametrize("seed", range(3))
def test_every_placement_planner_keeps_the_contract(name, seed):
    for problem in problems(seed, count=PROBLEMS.get(name, 25)):
        check_planner(planner(name), problem, seed)


@pytest.mark.parametrize("name", names("placement"))
def test_planner_takes_problems_without_groups_or_load(name):
    empty = PlacementProblem([], np.zeros(0, dtype=np.int64), 2)
    assert planner(name).plan(empty).bin.tolist() == []
    idle = PlacementProblem([0, 0], [0, 0], 2)
    validate(idle, planner(name).plan(idle))
    single = PlacementProblem([3, 1], [0, 0], 1)
    assert planner(name).plan(single).moves == 0


@pytest.mark.parametrize("name", names("placement"))
def test_every_planner_documents_its_source(name):
    assert planner(name).__doc__
    assert "Notes" in type(planner(name)).__doc__


@pytest.mark.parametrize("name", names("placement"))
def test_unknown_option_of_a_placement_planner_is_refused(name):
    with pytest.raises(PlanningError, match=f"planner '{name}' has no option 'speed'") as caught:
        planner(name, speed=3)
    assert all(field.name in str(caught.value) for field in fields(planner(name)))


def test_unknown_planner_name_is_refused():
    with pytest.raises(UnknownPlanner, match=f"no planner is named 'fluks': choose one of {', '.join(names())}"):
        planner("fluks")


class Faulty:
    def __init__(self, answer, by_number=()):
        self.answer = answer
        self.by_number = by_number

    def objective(self, problem, bin, seed=0):
        return (float(problem.shares(bin).max()),)

    def plan(self, problem, seed=0):
        return self.answer(problem)


def heaped(problem):
    return problem.placement(np.zeros(problem.groups, dtype=np.int64))


def stay(problem):
    return problem.placement(problem.current)


def test_kit_finds_faulty_placement_planners():
    problem = PlacementProblem([1, 1], [0, 1], 2)
    with pytest.raises(InvalidPlan):
        check_planner(Faulty(lambda problem: Placement([0, 1], 1, 0)), problem)
    with pytest.raises(AssertionError, match=r"goes from \(1.0,\) to \(2.0,\)"):
        check_planner(Faulty(heaped), problem)
    with pytest.raises(AssertionError, match=r"does not rest: moves \[2, 2, 2\]"):
        check_rest(Faulty(lambda problem: problem.placement(1 - problem.current)), problem, 2)
    answers = iter([problem.placement(np.array(bin)) for bin in ([0, 1], [1, 0])])
    with pytest.raises(AssertionError, match="and then"):
        check_planner(Faulty(lambda problem: next(answers)), problem)


def test_kit_finds_false_claims_of_optimality():
    problem = PlacementProblem([1, 1], [0, 0], 2)
    claim = problem.placement(problem.current, proven=True)
    with pytest.raises(AssertionError, match=r"claims that \(2.0,\) is optimal: \[0 1\] has \(1.0,\)"):
        check_proven(Faulty(stay), problem, claim)
    # Nothing better is allowed where nothing may move.
    check_proven(Faulty(stay), PlacementProblem([1, 1], [0, 0], 2, max_moves=0), claim)


def test_kit_finds_answers_that_depend_on_the_unit():
    problem = PlacementProblem([3, 3], [0, 0], 2)
    faulty = Faulty(lambda problem: heaped(problem) if problem.load[0] < 5 else problem.placement(np.array([0, 1])))
    with pytest.raises(AssertionError, match="in other units"):
        check_units(faulty, problem, faulty.plan(problem))


@pytest.mark.parametrize("seed", range(8))
def test_kit_finds_answers_that_depend_on_numbers(seed):
    problem = PlacementProblem([1, 2, 4, 9], [0, 0, 0, 0], 2)

    def first_group_moves(problem):
        bin = problem.current.copy()
        bin[0] = 1 - bin[0]
        return problem.placement(bin)

    with pytest.raises(AssertionError, match="reaches"):
        check_renumbering(Squares(first_group_moves), problem, seed)
    check_renumbering(Squares(first_group_moves, by_number=("groups",)), problem, seed)
    with pytest.raises(AssertionError, match="reaches"):
        check_renumbering(Squares(to_bin_0, by_number=("groups",)), FOUR_BINS, seed)
    check_renumbering(Squares(to_bin_0, by_number=("groups", "bins")), FOUR_BINS, seed)


# The products of any two loads are different, so any two bins that become one show in the sum of squares.
FOUR_BINS = PlacementProblem([1, 2, 4, 9], [0, 1, 2, 3], 4)


class Squares(Faulty):
    def objective(self, problem, bin, seed=0):
        return (float((problem.shares(bin) ** 2).sum()),)


def to_bin_0(problem):
    bin = problem.current.copy()
    bin[np.flatnonzero(bin == 1)] = 0
    return problem.placement(bin)


@pytest.mark.parametrize("name", names("placement"))
def test_planner_documents_the_contract_it_cannot_keep(name):
    made = planner(name)
    documentation = importlib.import_module(type(made).__module__).__doc__ + type(made).__doc__
    if getattr(made, "by_number", ()):
        assert "number" in documentation
    assert set(getattr(made, "by_number", ())) <= {"groups", "bins"}


@pytest.mark.parametrize("name", ["consistent-hash", "redist", "universal-hash"])
@pytest.mark.parametrize("seed", range(3))
def test_planners_by_number_ignore_loads(name, seed):
    # What can hold instead of renumbering: groups that are not tracked go where their numbers say, whatever they weigh.
    random = np.random.default_rng(seed)
    options = {"redist": {"tracked": 0}}.get(name, {})
    current = random.integers(0, 5, 60)
    one, two = (PlacementProblem(random.pareto(1.5, 60), current, 5) for _ in range(2))
    if name == "universal-hash":
        # All on one bin is never better.
        one, two = (replace(problem, current=np.zeros(60, dtype=int)) for problem in (one, two))
    first, second = (planner(name, **options).plan(problem, seed).bin for problem in (one, two))
    assert (first == second).mean() > 0.9
