"""The quality of a placement: balance, cost of moving, and traffic within bins.

Goal
    The measures of the papers, each a function of a problem and the bins, so that any two planners can be compared.
Heuristic
    None. Loads of bins are shares of their capacity; draining bins do not count in balance. A bin that is not in the
    problem raises a `PlanningError` that names the group.
Not done
    Latency: `dask_elastic.model` turns loads into it.

Notes
-----
ALBIC, section 4.3.1 (load distance) and 5 (load index, collocation); Elasticutor, section 3.1 (imbalance); ELB/CLB,
section 2.2 (variance, state movement). ALBIC rounds the mean up; by its first erratum it is exact here and normalised
by capacity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.placement.problem import SLACK, PlacementProblem
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number


def load_distance(problem: PlacementProblem, bin: ArrayLike) -> float:
    """Return the greatest distance of a bin's load from the mean, above or below.

    Notes
    -----
    ALBIC, section 4.3.1: only bins that stay count, while the mean includes the load on draining bins.

    Examples
    --------
    >>> problem = PlacementProblem([4, 4, 2, 2], current=[0, 0, 0, 1], bins=2)
    >>> load_distance(problem, problem.current)
    4.0
    """
    return float(np.abs(problem.shares(problem.places(bin))[problem.live] - problem.mean).max())


def imbalance(problem: PlacementProblem, bin: ArrayLike) -> float:
    """Return δ, the greatest share of load over the mean; 1 where there is no load.

    Examples
    --------
    >>> problem = PlacementProblem([4, 4, 2, 2], current=[0, 0, 0, 1], bins=2)
    >>> round(imbalance(problem, problem.current), 3)
    1.667
    """
    shares = problem.shares(problem.places(bin))[problem.live]
    return float(shares.max() / problem.mean) if problem.mean > 0 else 1.0


def variance(problem: PlacementProblem, bin: ArrayLike) -> float:
    """Return the mean square of the bins' distances from the mean, each weighted by the bin's capacity.

    Notes
    -----
    ELB/CLB, equation (1), where bins are equal and none drains.

    Examples
    --------
    >>> problem = PlacementProblem([4, 4, 2, 2], current=[0, 0, 0, 1], bins=2)
    >>> variance(problem, problem.current)
    16.0
    """
    strength = problem.strength[problem.live]
    away = problem.shares(problem.places(bin))[problem.live] - problem.mean
    return float((strength * away**2).sum() / strength.sum())


def moved_bytes(problem: PlacementProblem, bin: ArrayLike) -> float:
    """Return the state that changes its bin.

    Examples
    --------
    >>> problem = PlacementProblem([1, 1], current=[0, -1], bins=2, state_bytes=[64, 8])
    >>> moved_bytes(problem, [1, 1])
    64.0
    """
    return float(problem.state_bytes[problem.moved(problem.places(bin))].sum())


def collocation(problem: PlacementProblem, bin: ArrayLike) -> float:
    """Return the part of the traffic that stays within a bin; 1 where there is no traffic.

    Examples
    --------
    >>> problem = PlacementProblem([1, 1, 1], [0, 0, 1], 2, traffic=[[0, 3, 1], [0, 0, 0], [0, 0, 0]])
    >>> collocation(problem, problem.current)
    0.75
    """
    place = problem.places(bin)
    if problem.traffic is None:
        return 1.0
    problem.pause()
    pairs = problem.traffic.tocoo()
    whole = float(pairs.data.sum())
    if whole <= 0:
        return 1.0
    problem.pause()
    inside = (place[pairs.row] == place[pairs.col]) & (place[pairs.row] >= 0)
    return float(pairs.data[inside].sum()) / whole


def load_index(problem: PlacementProblem, bin: ArrayLike, communication: float = 1.0) -> float:
    """Return the load of the whole system as a share of its present load.

    Parameters
    ----------
    problem : PlacementProblem
        The groups, their present bins, and their traffic.
    bin : array of int
        Their new bins.
    communication : float
        The load of serialising, sending and reading all traffic between bins, in units of the load without it.

    Returns
    -------
    float
        1 for the present bins, less where more traffic stays within bins.

    Notes
    -----
    ALBIC, section 5. The paper measures it. Here it is a model: the measured loads include the cost of traffic between
    bins, in proportion to bytes. The default is the result of section 5.4: full collocation halves the load.

    Examples
    --------
    >>> problem = PlacementProblem([1, 1], [0, 1], 2, traffic=[[0, 3], [0, 0]])
    >>> load_index(problem, [0, 0])
    0.5
    """
    if not (is_number(communication) and 0 <= communication < float("inf")):
        raise PlanningError(f"communication is {communication!r}: give a finite number of 0 or more.")
    now, then = collocation(problem, problem.current), collocation(problem, bin)
    return (1 + communication * (1 - then)) / (1 + communication * (1 - now))


def better(new: Sequence[float], old: Sequence[float], noise: float = SLACK) -> bool:
    """Return whether an objective is lower than another: the first number that differs by more than noise decides.

    Examples
    --------
    >>> better((1.0, 3.0), (1.0, 4.0)), better((1.0 - 1e-15, 9.0), (1.0, 4.0))
    (True, False)
    """
    for low, high in zip(new, old, strict=True):
        least = noise * max(abs(low), abs(high))
        if low < high - least:
            return True
        if low > high + least:
            return False
    return False
