"""What every planner has to keep: a kit for those who write one.

Notes
-----
The contract: valid, deterministic, within budget, never worse than staying, idempotent without a budget, convergent
with one. A failure tells the problem and the rounds that led to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from dask_elastic.planning.check import validate
from dask_elastic.planning.problem import Placement, PlacementProblem
from dask_elastic.planning.quality import better
from dask_elastic.planning.registry import Planner

ROUNDS = 60
"""Within how many rounds a planner with a budget comes to rest."""

NOISE = 1e-6
"""Relative difference of objectives that does not count."""


def check_planner(planner: Planner, problem: PlacementProblem, seed: int = 0) -> Placement:
    """Run a planner on a problem, and on what follows from its answers.

    A planner that goes one step a round by design says so by an attribute ``gradual = True``; without a budget it may
    then take many rounds to come to rest.

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
        The problem. One with groups that have no bin is let pass: there is no staying.
    answer : Placement
        The planner's answer.
    seed : int
        The seed that the planner was given.

    Raises
    ------
    AssertionError
        With both objectives.
    """
    if not problem.placed.all() or problem.to_drain(answer.bin) < problem.to_drain(problem.current):
        return
    now, then = planner.objective(problem, problem.current, seed), planner.objective(problem, answer.bin, seed)
    assert not better(now, then, NOISE), f"{planner!r} goes from {now} to {then}: {answer} for {problem}"


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
