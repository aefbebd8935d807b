"""The contract of core planners, and small problems to check them with.

`dask_elastic.testing.planners.check_planner` checks a planner of any kind.

Notes
-----
Elasticutor, section 4.2, constraints (a) and (b).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dask_elastic.planning.cores import CoreAssignment, migration_cost
from dask_elastic.planning.cores.check import validate
from dask_elastic.planning.cores.columns import CoreColumns, Cores
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.planning.planner import Planner


def check_core_planner(
    planner: Planner[CoreProblem, CoreAssignment], problem: CoreProblem, seed: int = 0
) -> CoreAssignment:
    """Check a core planner against its contract.

    An answer is valid, the same each time, has the cost that it states, and does not depend on the unit of state.
    Planning again from an answer changes nothing.

    Parameters
    ----------
    planner : Planner
        The planner to check.
    problem : CoreProblem
        The problem to check it with.
    seed : int
        The planner's seed.

    Returns
    -------
    CoreAssignment
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
    >>> for problem in core_problems(seed=3, count=2):
    ...     assignment = check_core_planner(planner("naive"), problem)
    """
    before = _current(problem).copy()
    answer = planner.plan(problem, seed=seed)
    validate(problem, answer, repr(planner))
    assert np.array_equal(_current(problem), before), f"{planner!r} changes its problem"
    again = planner.plan(problem, seed=seed)
    same = np.array_equal(answer.assignment, again.assignment)
    assert same, f"{planner!r} answers {answer} and then {again} to {problem}"
    cost = migration_cost(before, answer.assignment, problem.state_bytes)
    assert abs(answer.cost - cost) <= 1e-9 * max(1.0, cost), f"{planner!r} states {answer.cost} for {cost}"
    # Powers of two leave all digits of a float as they are.
    scaled = planner.plan(replace(problem, state_bytes=problem.state_bytes * 2.0**10), seed=seed)
    same = np.array_equal(answer.assignment, scaled.assignment)
    assert same, f"{planner!r} answers {answer}, and {scaled} in another unit of state, to {problem}"
    rest = planner.plan(replace(problem, current=answer.assignment), seed=seed)
    same = np.array_equal(answer.assignment, rest.assignment)
    assert same, f"{planner!r} goes on from {answer} to {rest} for {problem}"
    return answer


def _current(problem: CoreProblem) -> Cores:
    """Return the present cores; where they are an array, the array itself, which a planner must not change."""
    return problem.current.matrix if isinstance(problem.current, CoreColumns) else problem.current


def core_problems(seed: int, count: int = 20, nodes: int = 5, executors: int = 7) -> Iterator[CoreProblem]:
    """Make small problems: nodes without cores, executors without cores, assignments that break constraints.

    Parameters
    ----------
    seed : int
        Problems of one seed are the same.
    count : int
        The number of problems.
    nodes, executors : int
        The greatest size of a problem.

    Yields
    ------
    CoreProblem
        One problem after the other; all can be solved.
    """
    for number in range(count):
        random = np.random.default_rng([seed, number])
        rows, columns = int(random.integers(1, nodes + 1)), int(random.integers(1, executors + 1))
        current = random.integers(0, 3, (rows, columns)) * (random.random((rows, columns)) < 0.5)
        granted = random.integers(1, 5, columns)
        capacity = random.integers(0, 9, rows)
        capacity[int(random.integers(rows))] += max(int(granted.sum() - capacity.sum()), 0)
        yield CoreProblem(
            current.astype(np.int64),
            granted,
            capacity,
            random.exponential(1e6, columns),
            random.integers(0, rows, columns),
            random.choice([0.0, 1e5, 1e7], columns),
        )
