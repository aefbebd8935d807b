"""Large neighbourhood search: solves the program for a few bins at a time, where all bins at once are too many.

Goal
    A load distance near the optimum, in a time in which the program for all bins finds almost nothing.
Heuristic
    The bin furthest from the mean is free, and two more: where the budget binds, the present and the former bin of a
    moved group, so that its cost can be spent better; else, at random, the bin at the other end. All other bins stay
    as they are. The solver's answer is taken if it lowers the sorted distances of all bins. The search ends with the
    time, or after many parts without improvement.
Not done
    A proof of optimality: only the program for all bins gives one.

Notes
-----
ALBIC, section 4.3.1, solves one program with CPLEX; neither the paper nor an erratum mentions parts. The budget is
that of the whole problem, less what groups outside of the part have spent.
"""

from __future__ import annotations

import numpy as np

from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.problem import Floats, Ints, PlacementProblem
from dask_elastic.planning.placement.program import Limits, Program, Weights

BINS = 3
"""Bins that are free at a time."""

_PAIRS = 4_000
"""The most pairs of group and bin in a part; beyond, only some of the groups on its bins are free."""

_SECONDS, _NODES = 0.3, 500
"""The solver's limits of seconds and branch-and-bound nodes for a part."""

_OVERHEAD = 0.004
"""Seconds to set up a part, which the solver does not count."""

_VAIN, _MOST = 3, 4
"""Parts per bin: the search ends after `_VAIN` of them without improvement, and without a clock after `_MOST`."""

_DIGITS = 6
"""Decimal digits to which distances are compared, in units of the mean load."""


def improve(problem: PlacementProblem, bin: Ints, weights: Weights, limits: Limits, seed: int) -> tuple[Ints, float]:
    """Lower the load distance of a valid placement.

    Parameters
    ----------
    problem : PlacementProblem
        The whole problem.
    bin : array of int
        A valid answer to it.
    weights : tuple of float
        The weights of the program.
    limits : Limits
        Seconds for all parts, nodes for each part.
    seed : int
        Seeds the choice of parts and the solver.

    Returns
    -------
    tuple of array of int and float
        An answer that is no worse, and the seconds used.
    """
    random = np.random.default_rng(seed)
    live = np.flatnonzero(problem.live)
    most, spent = np.inf if limits.seconds is None else limits.seconds, 0.0
    nodes = _NODES if limits.nodes is None else min(limits.nodes, _NODES)
    rounds = _MOST * len(live) if limits.seconds is None else np.inf
    reached, vain, tried = _distances(problem, bin), 0, 0
    while spent < most and tried < rounds and vain < _VAIN * len(live) and reached[0] > 0:
        problem.pause()
        bins = _part(problem, bin, live, random)
        groups = _groups(problem, bin, bins, random)
        part = Program(problem, weights, bin, groups, bins)
        seconds = None if limits.seconds is None else min(most - spent, _SECONDS)
        answer = part.solve(Limits(seconds, nodes, limits.gap), int(random.integers(2**31 - 1)))
        if answer.bin is None:
            break
        spent += answer.seconds + _OVERHEAD
        vain, tried = vain + 1, tried + 1
        found = approach(problem, answer.bin)
        distances = _distances(problem, found)
        if problem.to_drain(found) <= problem.to_drain(bin) and _lower(distances, reached):
            bin, reached, vain = found, distances, 0
    return bin, spent


def _distances(problem: PlacementProblem, bin: Ints) -> Floats:
    """Return the bins' distances from the mean in units of it, greatest first, rounded."""
    away = np.abs(problem.shares(bin)[problem.live] - problem.mean) / (problem.mean or 1.0)
    return -np.sort(-np.round(away, _DIGITS))


def _lower(one: Floats, other: Floats) -> bool:
    differ = np.flatnonzero(one != other)
    return bool(differ.size and one[differ[0]] < other[differ[0]])


def _part(problem: PlacementProblem, bin: Ints, live: Ints, random: np.random.Generator) -> Ints:
    """Return a few bins: mostly the one furthest from the mean, those of a moved group, and random ones."""
    away = problem.shares(bin)[live] - problem.mean
    first = int(np.argmax(np.abs(away))) if random.random() < 0.8 else int(random.integers(len(live)))
    chosen = [int(live[first])]
    limited = problem.max_moves is not None or problem.max_cost is not None
    moved = np.flatnonzero(problem.moved(bin) & problem.live[problem.current] & problem.live[bin])
    if limited and moved.size:
        group = int(moved[random.integers(len(moved))])
        chosen += [int(problem.current[group]), int(bin[group])]
    elif random.random() < 0.5:
        chosen.append(int(live[np.argmin(away if away[first] > 0 else -away)]))
    others = random.permutation(np.setdiff1d(live, chosen))
    return np.unique([*chosen, *others[: max(BINS - len(set(chosen)), 0)].tolist()])


def _groups(problem: PlacementProblem, bin: Ints, bins: Ints, random: np.random.Generator) -> Ints:
    """Return the free groups: those on the bins and on draining bins, or a random part of very many."""
    there = np.flatnonzero(np.isin(bin, bins) | problem.draining[bin])
    most = max(_PAIRS // len(bins), 1)
    return there if len(there) <= most else np.sort(random.permutation(there)[:most])
