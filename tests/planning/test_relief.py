"""The least load distance that a budget allows, and answers that reach it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.planning.placement import relief
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.milp import Milp
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import load_distance
from dask_elastic.planning.placement.relief import relieved
from dask_elastic.vocab.errors import InvalidPlan


@st.composite
def small(draw):
    """Problems that can be searched exhaustively, with budgets of moves, of state, or of both."""
    bins, groups = draw(st.integers(2, 3)), draw(st.integers(1, 5))

    def numbers(least, most):
        return draw(st.lists(st.integers(least, most), min_size=groups, max_size=groups))

    capacity = draw(st.none() | st.lists(st.integers(1, 30), min_size=bins, max_size=bins))
    draining = draw(st.lists(st.booleans(), min_size=bins, max_size=bins).filter(lambda found: not all(found)))
    moves, cost = draw(st.sampled_from([(1, None), (2, None), (None, 3.0), (2, 5.0), (3, 4.0)]))
    return PlacementProblem(
        numbers(0, 9), draw(st.lists(st.integers(0, bins - 1), min_size=groups, max_size=groups)), bins,
        state_bytes=numbers(0, 4), capacity=capacity, draining=draining, max_moves=moves, max_cost=cost,
        size=numbers(1, 2), pinned=draw(st.lists(st.booleans(), min_size=groups, max_size=groups)),
    )  # fmt: skip


def least_distance(problem):
    """Return the least load distance of all valid answers."""

    def distances():
        for bin in itertools.product(range(problem.bins), repeat=problem.groups):
            placement = problem.placement(np.array(bin))
            try:
                validate(problem, placement)
            except InvalidPlan:
                continue
            yield load_distance(problem, placement.bin)

    return min(distances())


def bound_holds(problem):
    found = relieved(problem)
    if found is None:
        return True
    validate(problem, problem.placement(found.bin))
    return found.least <= least_distance(problem) + 1e-6


@settings(max_examples=150, deadline=None)
@given(small())
def test_no_answer_is_better_than_the_bound(problem):
    assert bound_holds(problem)


def test_bound_that_forgets_that_moves_have_two_ends_is_found(monkeypatch):
    # Adding up what bins give and what bins get counts each move twice.
    monkeypatch.setattr(relief, "max", lambda one, other: one + other, raising=False)
    problem = PlacementProblem([4, 4], current=[0, 0], bins=2, max_moves=1)
    assert not bound_holds(problem)


@pytest.mark.parametrize("moves", [1, 4, 8])
def test_large_problems_with_few_moves_are_proven_without_the_solver(moves, monkeypatch):
    random = np.random.default_rng(moves)
    problem = PlacementProblem(
        random.uniform(0.1, 0.9, 1_500), random.integers(500, size=1_500), 500, capacity=np.full(500, 8.0),
        state_bytes=random.lognormal(14, 1, 1_500), max_moves=moves, max_cost=5e8,
    )  # fmt: skip
    monkeypatch.setattr("dask_elastic.planning.placement.milp.Program", None)
    placement = Milp().plan(problem)
    validate(problem, placement)
    assert placement.proven
    assert 0 < placement.moves <= moves
    assert load_distance(problem, placement.bin) <= relieved(problem).least + 1e-4 * problem.mean


def test_problems_without_budget_or_with_bins_to_empty_have_no_bound():
    assert relieved(PlacementProblem([4, 4], current=[0, 0], bins=2)) is None
    assert relieved(PlacementProblem([4, 4], current=[0, 0], bins=2, draining=[0], max_moves=1)) is None
    assert relieved(PlacementProblem([4, 4], current=[0, -1], bins=2, max_moves=1)) is None
    assert relieved(PlacementProblem([0, 0], current=[0, 1], bins=2, max_moves=1)) is None


def test_bin_below_the_mean_gets_a_group_where_none_is_above_it():
    problem = PlacementProblem([5, 5, 5, 5, 5, 5], current=[0, 0, 1, 1, 2, 2], bins=4, max_moves=1)
    found = relieved(problem)
    assert load_distance(problem, found.bin) == pytest.approx(found.least, abs=1e-6) == pytest.approx(2.5)


def test_solver_is_not_asked_where_no_plan_could_gain_enough(monkeypatch):
    random = np.random.default_rng(1)
    problem = PlacementProblem(
        random.uniform(0.45, 0.55, 300), np.arange(300) % 100, 100, capacity=np.full(100, 8.0), max_moves=4
    )
    monkeypatch.setattr("dask_elastic.planning.placement.milp.Program", None)
    assert Milp(least_gain=0.05).plan(problem).moves == 0
    gain = load_distance(problem, problem.current) - relieved(problem).least
    assert 0 < gain < 0.05 * problem.mean
    monkeypatch.undo()
    assert Milp(least_gain=gain / problem.mean / 2, time_limit=1.0).plan(problem).moves > 0
