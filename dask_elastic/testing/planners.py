"""What every planner has to keep: a kit for those who write one.

The contract, for every planner of `dask_elastic.planning.registry` and any other: an answer is valid, within budget,
the same each time, no worse than staying by the planner's own objective, and optimal where it claims to be. From its
own answer a planner moves nothing without a budget, and comes to rest with one. Neither the unit of loads and state nor
the numbers of groups and bins matter.

Some planners cannot keep all of it, by what they are, and say so:

- ``gradual = True``: one step a round, so that even without a budget it takes rounds to come to rest. ALBIC puts one
  more pair together in each.
- ``by_number = ("groups",)``, ``("bins",)`` or both: what the answer depends on, beside the problem. Hash functions
  (consistent hashing, Redist's tail, universal hashing) take numbers of groups and give numbers of bins; Storm cuts
  consecutive numbers into intervals; METIS, below COLA and ALBIC, draws among vertices by number; and in ALBIC the
  solver's choice among equal balances shows in collocation. Renumbering what is not named must still change nothing.

A failure tells the problem and the rounds that led to it.

Notes
-----
ALBIC, section 4.3.1: the constraints, a budget per round, and, by its second erratum, draining that must come to an
end. The other papers' planners are held to the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.problem import Draft, Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import better
from dask_elastic.planning.registry import Planner
from dask_elastic.vocab.errors import InvalidPlan

ROUNDS = 60
"""Within how many rounds a planner with a budget comes to rest."""

NOISE = 1e-6
"""Relative difference of objectives that does not count."""

OPTIMAL = 1e-4
"""Relative difference to the optimum that does not count where an answer is proven to be it: a solver has its gap."""

FEW = 1_000
"""Placements are all tried where there are no more than that."""


def check_planner(planner: Planner, problem: PlacementProblem, seed: int = 0) -> Placement:
    """Run a planner on a problem, and on what follows from its answers.

    Parameters
    ----------
    planner : Planner
        The planner to judge.
    problem : PlacementProblem
        The problem to judge it by; the kit makes some, see `problems`.
    seed : int
        The seed that the planner is given.

    Returns
    -------
    Placement
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


def check_not_worse(planner: Planner, problem: PlacementProblem, answer: Placement, seed: int = 0) -> None:
    """Raise if an answer is worse than staying for the planner's own objective and drains nothing either.

    Parameters
    ----------
    planner : Planner
        The planner whose objective counts.
    problem : PlacementProblem
        The problem. To stay is to place new groups where they load a bin least, and nothing else.
    answer : Placement
        The planner's answer.
    seed : int
        The seed that the planner was given.

    Raises
    ------
    AssertionError
        With both objectives.
    """
    stay = Draft(problem).bin
    if problem.to_drain(answer.bin) < problem.to_drain(stay):
        return
    now, then = planner.objective(problem, stay, seed), planner.objective(problem, answer.bin, seed)
    assert not better(now, then, NOISE), f"{planner!r} goes from {now} to {then}: {answer} for {problem}"


def check_proven(planner: Planner, problem: PlacementProblem, answer: Placement, seed: int = 0) -> None:
    """Raise if an answer claims to be optimal and a valid one that drains as much is better; all are tried, if few.

    Parameters
    ----------
    planner : Planner
        The planner whose objective counts.
    problem : PlacementProblem
        The problem.
    answer : Placement
        The planner's answer.
    seed : int
        The seed that the planner was given.

    Raises
    ------
    AssertionError
        With both objectives.
    """
    if not answer.proven or problem.bins**problem.groups > FEW:
        return
    reached, left = planner.objective(problem, answer.bin, seed), problem.to_drain(answer.bin)
    for bin in valid_placements(problem):
        found = planner.objective(problem, bin, seed)
        if problem.to_drain(bin) <= left and better(found, reached, OPTIMAL):
            raise AssertionError(f"{planner!r} claims that {reached} is optimal: {bin} has {found} for {problem}")


def check_units(planner: Planner, problem: PlacementProblem, answer: Placement, seed: int = 0) -> None:
    """Raise if loads or state in another unit change an answer.

    Parameters
    ----------
    planner : Planner
        The planner to judge.
    problem : PlacementProblem
        The problem.
    answer : Placement
        The planner's answer.
    seed : int
        The seed that the planner was given.

    Raises
    ------
    AssertionError
        With both answers.
    """
    # Powers of two leave all digits of a float as they are.
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


def check_renumbering(planner: Planner, problem: PlacementProblem, seed: int = 0) -> None:
    """Raise if other numbers of groups and bins lead to another value of the planner's objective.

    Parameters
    ----------
    planner : Planner
        The planner to judge. What it names in ``by_number`` keeps its numbers.
    problem : PlacementProblem
        A problem without ties, as `without_ties` makes one: among equals the number may decide.
    seed : int
        The seed that the planner is given, and what the numbers are drawn from.

    Raises
    ------
    AssertionError
        With both values.
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
    """Return other numbers in one cycle, so that none stays and, of three or more, no two change places."""
    order = random.permutation(count)
    numbers = np.empty(count, dtype=np.int64)
    numbers[order] = np.roll(order, 1)
    return numbers


def check_rest(planner: Planner, problem: PlacementProblem, rounds: int, seed: int = 0) -> None:
    """Raise if a planner still moves groups after so many rounds of planning from its own answer.

    Parameters
    ----------
    planner : Planner
        The planner to judge.
    problem : PlacementProblem
        Where it starts; the budget is granted anew in each round.
    rounds : int
        How many rounds it may take. After one round more it must have come to rest.
    seed : int
        The seed that the planner is given.

    Raises
    ------
    AssertionError
        With the moves of every round.
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


def renumbered(problem: PlacementProblem, groups: Ints, bins: Ints) -> PlacementProblem:
    """Return a problem with other numbers.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.
    groups : array of int
        For each number that a group gets, the number that it had.
    bins : array of int
        For each number that a bin had, the number that it gets.

    Returns
    -------
    PlacementProblem
        The problem in these numbers.

    Examples
    --------
    >>> one = PlacementProblem([5, 6, 7], current=[0, 1, -1], bins=2)
    >>> other = renumbered(one, np.array([2, 0, 1]), np.array([1, 0]))
    >>> other.load.tolist(), other.current.tolist()
    ([7.0, 5.0, 6.0], [-1, 1, 0])
    """
    had = np.argsort(bins)
    return replace(
        problem,
        load=problem.load[groups],
        current=np.where(problem.placed, bins[problem.current], -1)[groups],
        state_bytes=problem.state_bytes[groups],
        capacity=None if problem.capacity is None else problem.capacity[had],
        draining=problem.draining[had],
        traffic=None if problem.traffic is None else problem.traffic[groups][:, groups],
        operator=None if problem.operator is None else problem.operator[groups],
        history=None if problem.history is None else problem.history[:, groups],
        size=problem.size[groups],
        pinned=problem.pinned[groups],
    )


def without_ties(problem: PlacementProblem, seed: int) -> PlacementProblem:
    """Return a problem in which no two groups and no two bins are alike.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.
    seed : int
        What the differences are drawn from.

    Returns
    -------
    PlacementProblem
        The problem with loads, state and capacities changed by some percent.
    """
    random = np.random.default_rng(seed)
    factor = random.uniform(1, 1.1, problem.groups)
    some = 0.01 * max(float(problem.load.mean()), 1e-3) if problem.groups else 0.0
    each = factor if problem.load.ndim == 1 else factor[:, None]
    windows = problem.history
    return replace(
        problem,
        load=(problem.load + some) * each,
        state_bytes=(problem.state_bytes + 1) * random.uniform(1, 1.1, problem.groups),
        capacity=None if problem.capacity is None else problem.capacity * random.uniform(1.1, 1.2, (problem.bins, 1)),
        history=None if windows is None else (windows + some) * factor * random.uniform(1, 1.1, windows.shape),
        traffic=None if problem.traffic is None else problem.traffic.multiply(random.uniform(1, 1.1, problem.groups)),
    )


def valid_placements(problem: PlacementProblem) -> Iterator[Ints]:
    """Yield all placements that keep the rules of a small problem.

    Parameters
    ----------
    problem : PlacementProblem
        The problem; the number of its placements is that of its bins to the power of that of its groups.

    Yields
    ------
    array of int
        The bin of each group.

    Examples
    --------
    >>> [bin.tolist() for bin in valid_placements(PlacementProblem([1, 1], current=[0, 1], bins=2, max_moves=1))]
    [[0, 0], [0, 1], [1, 1]]
    """
    for bins in itertools.product(range(problem.bins), repeat=problem.groups):
        bin = np.array(bins, dtype=np.int64)
        try:
            validate(problem, problem.placement(bin))
        except InvalidPlan:
            continue
        yield bin


def problems(seed: int, count: int = 20, groups: int = 12, bins: int = 4) -> Iterator[PlacementProblem]:
    """Make small problems of every kind: budgets, capacities, draining bins, several resources, new groups.

    Parameters
    ----------
    seed : int
        Problems of one seed are alike.
    count : int
        How many.
    groups, bins : int
        The size of each problem at most.

    Yields
    ------
    PlacementProblem
        One problem after the other.
    """
    for number in range(count):
        yield _problem(np.random.default_rng([seed, number]), groups, bins)


def _problem(random: np.random.Generator, most_groups: int, most_bins: int) -> PlacementProblem:
    groups, bins = int(random.integers(1, most_groups + 1)), int(random.integers(1, most_bins + 1))
    current = random.integers(0, bins, groups)
    if random.random() < 0.2:
        current[random.random(groups) < 0.4] = -1
    shape = (groups, 2) if random.random() < 0.2 else (groups,)
    whole = random.random() < 0.5
    load = random.integers(0, 20, shape).astype(np.float64) if whole else random.pareto(1.5, shape)
    state = random.integers(0, 1000, groups)
    mean = load.reshape(groups, -1).sum(axis=0).max() / bins + 1
    return PlacementProblem(
        load,
        current,
        bins,
        state_bytes=state if random.random() < 0.7 else None,
        capacity=random.uniform(0.8, 3, bins) * mean if random.random() < 0.4 else None,
        draining=random.permutation(bins)[: int(random.integers(0, bins))] if random.random() < 0.4 else None,
        traffic=sp.random_array((groups, groups), density=0.3, rng=random) if random.random() < 0.6 else None,
        operator=np.sort(random.integers(0, 3, groups)),
        history=random.poisson(load.reshape(groups, -1)[:, 0], (6, groups)) if random.random() < 0.6 else None,
        max_moves=int(random.integers(0, groups + 1)) if random.random() < 0.5 else None,
        max_cost=float(random.uniform(0, 1) * state.sum()) if random.random() < 0.3 else None,
    )
