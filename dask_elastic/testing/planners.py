"""The conformance kit of planners: checks a planner of any kind against its contract.

`check_planner` takes a planner and a problem of its kind. The contracts of core planners and of interval planners are
in `dask_elastic.testing.core_planners` and `dask_elastic.testing.interval_planners`. The contract of placement planners
is here: an answer is valid, within budget, the same each time, no worse than staying by the planner's own objective,
and optimal where it claims to be. Planning again from its own answer moves nothing without a budget, and comes to rest
with one. Neither the unit of loads and state nor the numbering of groups and bins changes the answer's quality.

Some placement planners cannot keep all of this and declare so by attributes:

- ``gradual = True``: the planner makes one step per round, so that it needs several rounds to come to rest even without
  a budget. ALBIC collocates one more pair in each.
- ``by_number = ("groups",)``, ``("bins",)`` or both: the answer depends on these numbers. Hash functions (consistent
  hashing, Redist's tail, universal hashing) map numbers of groups to numbers of bins; Storm cuts consecutive numbers
  into intervals; METIS, which COLA and ALBIC use, breaks ties among vertices by number; and in ALBIC the solver's
  choice among equal balances changes the collocation. Renumbering what is not declared must change nothing.

A failure prints the problem and the rounds that led to it.

Notes
-----
ALBIC, section 4.3.1: the constraints, a budget per round, and, by its second erratum, draining that ends. The other
papers' placement planners keep the same contract.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, overload

import numpy as np

from dask_elastic.planning.cores import CoreAssignment
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.planning.intervals.plan import IntervalPlan
from dask_elastic.planning.intervals.problem import IntervalProblem, SequenceProblem
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.planner import PlacementPlanner
from dask_elastic.planning.placement.problem import Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import better
from dask_elastic.planning.planner import Planner
from dask_elastic.testing.core_planners import check_core_planner
from dask_elastic.testing.interval_planners import check_interval_planner, check_sequence_planner
from dask_elastic.testing.placement_problems import problems, renumbered, valid_placements, without_ties

__all__ = [
    "check_not_worse",
    "check_planner",
    "check_proven",
    "check_renumbering",
    "check_rest",
    "check_units",
    "problems",
    "renumbered",
    "valid_placements",
    "without_ties",
]

ROUNDS = 60
"""The most rounds that a planner with a budget takes to come to rest."""

NOISE = 1e-6
"""Objectives that differ relatively by less are equal."""

OPTIMAL = 1e-4
"""Relative difference to the optimum that a proven answer may have: the gap of a solver."""

FEW = 1_000
"""Problems with no more placements than this are searched exhaustively."""


@overload
def check_planner(planner: PlacementPlanner, problem: PlacementProblem, seed: int = 0) -> Placement: ...


@overload
def check_planner(
    planner: Planner[CoreProblem, CoreAssignment], problem: CoreProblem, seed: int = 0
) -> CoreAssignment: ...


@overload
def check_planner(
    planner: Planner[IntervalProblem, IntervalPlan], problem: IntervalProblem, seed: int = 0
) -> IntervalPlan: ...


@overload
def check_planner(
    planner: Planner[SequenceProblem, list[IntervalPlan]], problem: SequenceProblem, seed: int = 0
) -> list[IntervalPlan]: ...


def check_planner(planner: Any, problem: Any, seed: int = 0) -> Any:
    """Check a planner of any kind against its contract, on one problem.

    Parameters
    ----------
    planner : Planner
        The planner to check.
    problem : PlacementProblem, CoreProblem, IntervalProblem or SequenceProblem
        The problem to check it with. `problems`, `core_problems`, `interval_problems` and `sequence_problems` make
        some.
    seed : int
        The planner's seed.

    Returns
    -------
    Placement, CoreAssignment, IntervalPlan or list of IntervalPlan
        The planner's answer to the problem.

    Raises
    ------
    InvalidPlan
        If an answer breaks a rule of the problem.
    AssertionError
        If another part of the contract is broken.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> for problem in problems(seed=3, count=2):
    ...     placement = check_planner(planner("flux"), problem)
    """
    if isinstance(problem, CoreProblem):
        return check_core_planner(planner, problem, seed)
    if isinstance(problem, IntervalProblem):
        return check_interval_planner(planner, problem, seed)
    if isinstance(problem, SequenceProblem):
        return check_sequence_planner(planner, problem, seed)
    return _check_placement_planner(planner, problem, seed)


def _check_placement_planner(planner: PlacementPlanner, problem: PlacementProblem, seed: int) -> Placement:
    answer = planner.plan(problem, seed=seed)
    validate(problem, answer)
    again = planner.plan(problem, seed=seed)
    assert np.array_equal(answer.bin, again.bin), f"{planner!r} answers {answer} and then {again} to {problem}"
    check_not_worse(planner, problem, answer, seed)
    check_proven(planner, problem, answer, seed)
    check_units(planner, problem, answer, seed)
    check_renumbering(planner, without_ties(problem, seed), seed)
    free = replace(problem, max_moves=None, max_cost=None)
    check_rest(planner, free, ROUNDS if getattr(planner, "gradual", False) else 1, seed)
    check_rest(planner, problem, ROUNDS, seed)
    return answer


def check_not_worse(planner: PlacementPlanner, problem: PlacementProblem, answer: Placement, seed: int = 0) -> None:
    """Raise if an answer is worse than staying by the planner's own objective and drains nothing.

    Parameters
    ----------
    planner : PlacementPlanner
        The planner, whose objective is compared.
    problem : PlacementProblem
        The problem. Staying means to place new groups on the least loaded bins and to move nothing.
    answer : Placement
        The planner's answer.
    seed : int
        The planner's seed.

    Raises
    ------
    AssertionError
        With both objectives.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> problem = PlacementProblem([5, 4, 3], current=[0, 0, 0], bins=2)
    >>> check_not_worse(planner("flux"), problem, planner("flux").plan(problem))
    """
    stay = Draft(problem).bin
    if problem.to_drain(answer.bin) < problem.to_drain(stay):
        return
    now, then = planner.objective(problem, stay, seed), planner.objective(problem, answer.bin, seed)
    assert not better(now, then, NOISE), f"{planner!r} goes from {now} to {then}: {answer} for {problem}"


def check_proven(planner: PlacementPlanner, problem: PlacementProblem, answer: Placement, seed: int = 0) -> None:
    """Raise if an answer claims to be optimal and a valid one that drains as much is better; only small problems count.

    Parameters
    ----------
    planner : PlacementPlanner
        The planner, whose objective is compared.
    problem : PlacementProblem
        The problem.
    answer : Placement
        The planner's answer.
    seed : int
        The planner's seed.

    Raises
    ------
    AssertionError
        With both objectives.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> problem = PlacementProblem([5, 4, 3], current=[0, 0, 0], bins=2)
    >>> check_proven(planner("flux"), problem, planner("flux").plan(problem))
    """
    if not answer.proven or problem.bins**problem.groups > FEW:
        return
    reached, left = planner.objective(problem, answer.bin, seed), problem.to_drain(answer.bin)
    for bin in valid_placements(problem):
        found = planner.objective(problem, bin, seed)
        if problem.to_drain(bin) <= left and better(found, reached, OPTIMAL):
            raise AssertionError(f"{planner!r} claims that {reached} is optimal: {bin} has {found} for {problem}")


def check_units(planner: PlacementPlanner, problem: PlacementProblem, answer: Placement, seed: int = 0) -> None:
    """Raise if another unit of loads or state changes an answer.

    Parameters
    ----------
    planner : PlacementPlanner
        The planner to check.
    problem : PlacementProblem
        The problem.
    answer : Placement
        The planner's answer.
    seed : int
        The planner's seed.

    Raises
    ------
    AssertionError
        With both answers.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> problem = PlacementProblem([5, 4, 3], current=[0, 0, 0], bins=2)
    >>> check_units(planner("flux"), problem, planner("flux").plan(problem))
    """
    # Powers of two keep all digits of a float.
    scaled = replace(
        problem,
        load=problem.load * 2.0**10,
        capacity=None if problem.capacity is None else problem.capacity * 2.0**10,
        history=None if problem.history is None else problem.history * 2.0**10,
        state_bytes=problem.state_bytes * 2.0**-20,
        max_cost=None if problem.max_cost is None else problem.max_cost * 2.0**-20,
    )
    other = planner.plan(scaled, seed=seed)
    same = np.array_equal(answer.bin, other.bin)
    assert same, f"{planner!r} answers {answer.bin}, and {other.bin} in other units of load and state, to {problem}"


def check_renumbering(planner: PlacementPlanner, problem: PlacementProblem, seed: int = 0) -> None:
    """Raise if renumbering groups and bins changes the value of the planner's objective.

    Parameters
    ----------
    planner : PlacementPlanner
        The planner to check. What it names in ``by_number`` keeps its numbers.
    problem : PlacementProblem
        A problem without ties, see `without_ties`: numbers may break ties.
    seed : int
        The planner's seed, which also draws the numbers.

    Raises
    ------
    AssertionError
        With both values.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> problem = PlacementProblem([5, 4, 3], current=[0, 0, 0], bins=2)
    >>> check_renumbering(planner("flux"), without_ties(problem, seed=0))
    """
    kept = getattr(planner, "by_number", ())
    random = np.random.default_rng(seed)
    groups, bins = _other_numbers(random, problem.groups), _other_numbers(random, problem.bins)
    groups = np.arange(problem.groups) if "groups" in kept else groups
    bins = np.arange(problem.bins) if "bins" in kept else bins
    other = renumbered(problem, groups, bins)
    first, second = planner.plan(problem, seed=seed), planner.plan(other, seed=seed)
    one, two = planner.objective(problem, first.bin, seed), planner.objective(other, second.bin, seed)
    # Sums of loads, and of their squares, are rounded.
    least = 1e-12 * max(problem.mean, problem.mean**2)
    one, two = (tuple(x if x > least else 0.0 for x in objective) for objective in (one, two))
    same = not better(one, two, OPTIMAL) and not better(two, one, OPTIMAL)
    assert same, f"{planner!r} reaches {one}, and {two} with groups {groups} and bins {bins}, for {problem}"


def _other_numbers(random: np.random.Generator, count: int) -> Ints:
    """Return a permutation of one cycle, so that no number stays and, of three or more, no two swap."""
    order = random.permutation(count)
    numbers = np.empty(count, dtype=np.int64)
    numbers[order] = np.roll(order, 1)
    return numbers


def check_rest(planner: PlacementPlanner, problem: PlacementProblem, rounds: int, seed: int = 0) -> None:
    """Raise if a planner still moves groups after a number of rounds of planning from its own answer.

    Parameters
    ----------
    planner : PlacementPlanner
        The planner to check.
    problem : PlacementProblem
        The first problem; each round has the full budget.
    rounds : int
        The most rounds with moves; the round after them must move nothing.
    seed : int
        The planner's seed.

    Raises
    ------
    AssertionError
        With the moves of every round.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> problem = PlacementProblem([5, 4, 3], current=[0, 0, 0], bins=2)
    >>> check_rest(planner("flux"), problem, rounds=1)
    """
    history: list[int] = []
    for _ in range(rounds + 1):
        answer = planner.plan(problem, seed=seed)
        validate(problem, answer)
        history.append(answer.moves)
        if answer.moves == 0:
            return
        problem = replace(problem, current=answer.bin)
    raise AssertionError(f"{planner!r} with seed {seed} does not rest: moves {history}, ending with {problem}")
