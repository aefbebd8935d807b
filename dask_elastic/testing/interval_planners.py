"""The contracts of interval planners, for one migration and for sequences, and small problems to check them with.

`dask_elastic.testing.planners.check_planner` checks a planner of any kind.

Notes
-----
State migration (Ding et al.), sections 4.1 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.planning.intervals.check import validate
from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.plan import IntervalPlan
from dask_elastic.planning.intervals.problem import IntervalProblem, SequenceProblem
from dask_elastic.planning.planner import Planner

ROUNDS = 10
"""Within how many rounds an interval planner comes to rest."""


def check_interval_planner(
    planner: Planner[IntervalProblem, IntervalPlan], problem: IntervalProblem, seed: int = 0
) -> IntervalPlan:
    """Check an interval planner against its contract.

    An answer is valid and the same each time. Planning again from an answer comes to rest.

    Parameters
    ----------
    planner : Planner
        The planner to check.
    problem : IntervalProblem
        The problem to check it with.
    seed : int
        The planner's seed.

    Returns
    -------
    IntervalPlan
        The planner's answer.

    Raises
    ------
    InvalidPlan
        If an answer breaks a rule of the problem.
    AssertionError
        If it breaks another part of the contract.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> for problem in interval_problems(seed=3, count=2):
    ...     plan = check_interval_planner(planner("single-step"), problem)
    """
    answer = planner.plan(problem, seed=seed)
    validate(problem, answer)
    again = planner.plan(problem, seed=seed)
    assert np.array_equal(answer.intervals, again.intervals), f"{planner!r} answers {answer} and then {again}"
    costs = [answer.cost]
    for _ in range(ROUNDS):
        following = replace(problem, intervals=again.intervals)
        again = planner.plan(following, seed=seed)
        validate(following, again)
        costs.append(again.cost)
        if again.cost == 0:
            return answer
    raise AssertionError(f"{planner!r} does not rest: costs {costs} for {problem}")


def check_sequence_planner(
    planner: Planner[SequenceProblem, list[IntervalPlan]], problem: SequenceProblem, seed: int = 0
) -> list[IntervalPlan]:
    """Check a planner of sequences against its contract: one valid plan per step, and the same plans each time.

    Parameters
    ----------
    planner : Planner
        The planner to check.
    problem : SequenceProblem
        The problem to check it with.
    seed : int
        The planner's seed.

    Returns
    -------
    list of IntervalPlan
        The planner's answer.

    Raises
    ------
    InvalidPlan
        If a plan breaks a rule of its step.
    AssertionError
        If the answer breaks another part of the contract.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> for problem in sequence_problems(seed=3, count=2):
    ...     plans = check_sequence_planner(planner("sequence"), problem)
    """
    answer, again = planner.plan(problem, seed=seed), planner.plan(problem, seed=seed)
    assert len(answer) == len(problem.nodes_sequence), f"{planner!r} has {len(answer)} plans for {problem}"
    before: ArrayLike = problem.intervals
    for step, (plan, other) in enumerate(zip(answer, again, strict=True)):
        assert np.array_equal(plan.intervals, other.intervals), f"{planner!r} answers {plan} and then {other}"
        load, state, tau = _step(problem, step)
        one = IntervalProblem(load, state, before, problem.nodes_sequence[step], tau, problem.allow_empty)
        validate(one, plan)
        before = plan.intervals
    return answer


def _step(problem: SequenceProblem, step: int) -> tuple[ArrayLike, ArrayLike, float]:
    """Return load, state and τ of one step."""
    load, state, tau = np.asarray(problem.load), np.asarray(problem.state_bytes), np.asarray(problem.tau)
    return (
        load[step] if load.ndim == 2 else load,
        state[step] if state.ndim == 2 else state,
        float(tau[step] if tau.ndim else tau),
    )


def interval_problems(seed: int, count: int = 20, tasks: int = 12, nodes: int = 4) -> Iterator[IntervalProblem]:
    """Make small problems that have a solution, with empty intervals allowed and not.

    Parameters
    ----------
    seed : int
        Problems of one seed are the same.
    count : int
        The number of problems.
    tasks, nodes : int
        The greatest size of a problem.

    Yields
    ------
    IntervalProblem
        One problem after the other.
    """
    for number in range(count):
        random = np.random.default_rng([seed, number])
        size = int(random.integers(nodes, tasks + 1))
        load = random.integers(1, 10, size).astype(np.float64)
        wanted = int(random.integers(1, nodes + 1))
        tau = least_tau(load, wanted) + float(random.choice([0.1, 0.5]))
        yield IntervalProblem(
            load,
            random.integers(0, 100, size).astype(np.float64),
            _intervals(random, size, nodes),
            wanted,
            tau,
            bool(random.random() < 0.5),
        )


def sequence_problems(seed: int, count: int = 10, tasks: int = 10, nodes: int = 4) -> Iterator[SequenceProblem]:
    """Make small sequences that have a solution.

    Parameters
    ----------
    seed : int
        Problems of one seed are the same.
    count : int
        The number of problems.
    tasks, nodes : int
        The greatest size of a problem.

    Yields
    ------
    SequenceProblem
        One problem after the other.
    """
    for number in range(count):
        random = np.random.default_rng([seed, number])
        size = int(random.integers(nodes, tasks + 1))
        load = random.integers(1, 10, size).astype(np.float64)
        wanted = random.integers(1, nodes + 1, 3).tolist()
        yield SequenceProblem(
            load,
            random.integers(0, 100, size).astype(np.float64),
            _intervals(random, size, nodes),
            wanted,
            [least_tau(load, one) + 0.3 for one in wanted],
        )


def _intervals(random: np.random.Generator, tasks: int, nodes: int) -> NDArray[np.int64]:
    """Return intervals of a random order that hold every task once."""
    count = int(random.integers(1, nodes + 1))
    inner = np.sort(random.choice(np.arange(1, tasks), count - 1, replace=False))
    bounds = np.concatenate([[0], inner, [tasks]])
    return random.permutation(np.stack([bounds[:-1], bounds[1:]], axis=1)).astype(np.int64)
