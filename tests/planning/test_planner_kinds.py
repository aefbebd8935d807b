"""One registry and one conformance kit for planners of all kinds."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from dask_elastic.planning.cores import CoreAssignment
from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.planners import SingleStep
from dask_elastic.planning.intervals.transition import projected_costs
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.registry import KINDS, kind_of, names, planner
from dask_elastic.testing.core_planners import core_problems
from dask_elastic.testing.interval_planners import interval_problems, sequence_problems
from dask_elastic.testing.planners import check_planner
from dask_elastic.vocab.errors import InvalidPlan, MissingExtra, PlanningError, UnknownPlanner

PROBLEMS = {
    "cores": core_problems,
    "intervals": interval_problems,
    "sequence": sequence_problems,
}
NEEDS = {"albic": ("highspy", "pymetis"), "cola": ("pymetis",), "milp": ("highspy",)}


def made(name, problem):
    """Return a planner with the options that it needs for a problem."""
    if name != "transition-aware":
        return planner(name)
    loads = np.asarray(problem.load)
    tau = max(problem.tau, least_tau(loads, problem.nodes % 4 + 1))
    matrix = {problem.nodes: {problem.nodes % 4 + 1: 1.0}}
    return planner(name, projected=projected_costs(loads, problem.state_bytes, matrix, tau, 0.5, problem.allow_empty))


def test_kinds_hold_all_planners_once():
    assert sorted(name for kind in KINDS for name in names(kind)) == list(names())
    assert {kind_of(name) for name in names()} == set(KINDS)


# The kit of placement planners runs in `test_registry`, on more problems.
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [name for kind in KINDS if kind != "placement" for name in names(kind)])
def test_every_planner_passes_the_kit_of_its_kind(name, seed):
    for problem in PROBLEMS[kind_of(name)](seed, count=6):
        check_planner(made(name, problem), problem, seed)


def test_planner_of_another_kind_is_refused():
    with pytest.raises(UnknownPlanner, match="no planner of kind 'cores' is named 'flux': choose one of elasticutor"):
        planner("flux", "cores")


def test_missing_option_is_refused_by_name():
    with pytest.raises(PlanningError, match="planner 'transition-aware' needs the option 'projected'"):
        planner("transition-aware")
    with pytest.raises(PlanningError, match="projected is 3"):
        planner("transition-aware", projected=3)


@pytest.mark.parametrize("kind", ["cores", "intervals", "sequence"])
def test_unknown_option_is_refused_for_every_kind(kind):
    for name in names(kind):
        with pytest.raises(PlanningError, match=f"planner '{name}' has no option 'speed'"):
            planner(name, speed=1)


@pytest.mark.parametrize("module", ["highspy", "pymetis"])
def test_planner_without_its_solver_is_refused_by_name(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    for name in names("placement"):
        if module in NEEDS.get(name, ()):
            with pytest.raises(MissingExtra, match=rf"planner '{name}' needs {module}: pip install 'dask-elastic\[pl"):
                planner(name)
        else:
            planner(name)


def test_planner_class_without_its_solver_raises_when_it_plans(monkeypatch):
    problem = PlacementProblem([5, 4, 3.5, 3, 2.7], current=[0, 0, 0, 0, 0], bins=2)
    for name, module in (("milp", "highspy"), ("cola", "pymetis")):
        one = planner(name)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match=f"needs {module}"):
            one.plan(problem)


class Fixed:
    """A core planner whose answers are given."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def plan(self, problem, seed=0):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return CoreAssignment(np.array(answer), 0.0, 1.0)


def test_kit_finds_faulty_core_planners():
    problem = replace(
        next(core_problems(0, count=1)),
        current=np.array([[1], [1]]),
        granted=np.array([2]),
        capacity=np.array([4, 4]),
        state_bytes=np.array([8.0]),
        home=np.array([0]),
        intensity=np.array([0.0]),
    )
    with pytest.raises(InvalidPlan, match="gives out 5 cores of node 0, which has 4"):
        check_planner(Fixed([[5], [0]]), problem)
    with pytest.raises(InvalidPlan, match="gives 1 core to executor 0, which has to get 2"):
        check_planner(Fixed([[1], [0]]), problem)
    with pytest.raises(AssertionError, match="and then"):
        check_planner(Fixed([[1], [1]], [[2], [2]]), problem)
    with pytest.raises(AssertionError, match=r"states 0.0 for 4.0"):
        check_planner(Fixed([[2], [0]]), problem)


def test_kit_finds_faulty_interval_planners():
    class Wrong(SingleStep):
        def plan(self, problem, seed=0):
            return super().plan(replace(problem, tau=100.0), seed)

    class Flipped(SingleStep):
        def plan(self, problem, seed=0):
            plan = super().plan(problem, seed)
            return replace(plan, cost=plan.cost + 1)

    for problem in interval_problems(1, count=3):
        one = replace(problem, intervals=[[0, len(problem.load)]], nodes=2, tau=least_tau(problem.load, 2) + 0.1)
        with pytest.raises(InvalidPlan, match="has a load of"):
            check_planner(Wrong(), replace(one, allow_empty=True))
        with pytest.raises(InvalidPlan, match="cost is"):
            check_planner(Flipped(), one)
