"""Placement problems for tests of planners: drawn from a seed, renumbered, without ties, and all their placements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.problem import Ints, PlacementProblem
from dask_elastic.vocab.errors import InvalidPlan


def renumbered(problem: PlacementProblem, groups: Ints, bins: Ints) -> PlacementProblem:
    """Return a problem with groups and bins renumbered.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.
    groups : array of int
        The old number of each new group.
    bins : array of int
        The new number of each old bin.

    Returns
    -------
    PlacementProblem
        The renumbered problem.

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
    """Return a problem in which no two groups and no two bins are equal.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.
    seed : int
        Seeds the differences.

    Returns
    -------
    PlacementProblem
        The problem with loads, state and capacities changed by a few percent.

    Examples
    --------
    >>> problem = PlacementProblem([2, 2], current=[0, 0], bins=2)
    >>> without_ties(problem, seed=0).load.round(2).tolist()
    [2.15, 2.07]
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
    """Yield all valid placements of a small problem.

    Parameters
    ----------
    problem : PlacementProblem
        The problem, which has bins ** groups placements.

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
        Problems of one seed are the same.
    count : int
        The number of problems.
    groups, bins : int
        The greatest size of a problem.

    Yields
    ------
    PlacementProblem
        One problem after the other.

    Examples
    --------
    >>> [problem.groups <= 5 for problem in problems(seed=0, count=3, groups=5)]
    [True, True, True]
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
