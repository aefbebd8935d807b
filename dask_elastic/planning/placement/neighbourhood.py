"""The program on a few bins at a time, from the bin furthest from the mean on: for problems too large for all at once.

Goal
    A load distance near the best there is, within a time in which the program for all bins finds next to nothing.
Heuristic
    The bin furthest from the mean is free, and two more: where the budget binds, the bin that some moved group is on
    and the one that it came from, so that what was spent can be spent better; else, by turns, the bin at the other end.
    All other bins stay as they are. What the solver finds is taken if it lowers the sorted distances of all bins. It
    ends with the time, or when many such parts have been tried in vain.
Not done
    A proof: only the program for all bins gives one.

Notes
-----
ALBIC, section 4.3.1, solves one program with CPLEX; neither the paper nor an erratum says anything of parts. The budget
is that of the whole: what other groups have spent of it is not free.
"""

from __future__ import annotations

import numpy as np

from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.problem import Floats, Ints, PlacementProblem
from dask_elastic.planning.placement.program import Limits, Program, Weights

BINS = 3
"""How many bins are free at a time."""

_PAIRS = 4_000
"""A part has no more pairs of a group and a bin than that; beyond, only some of the groups on its bins are free."""

_SECONDS, _NODES = 0.3, 500
"""The solver gets no more of either for a part."""

_OVERHEAD = 0.004
"""Seconds that it takes to set up a part, which the solver does not count."""

_VAIN, _MOST = 3, 4
"""The search ends when so many parts for each bin have been tried in vain, and without a clock after so many in all."""

_DIGITS = 6
"""Distances are compared to so many digits, in units of the mean load."""


def improve(problem: PlacementProblem, bin: Ints, weights: Weights, limits: Limits, seed: int) -> tuple[Ints, float]:
    """Lower the load distance of a valid placement.

    Parameters
    ----------
    problem : PlacementProblem
        The whole problem.
    bin : array of int
        A valid answer to it.
    weights : tuple of float
        Those of the program.
    limits : Limits
        Seconds for all parts, nodes for each of them.
    seed : int
        What the parts and the solver draw from.

    Returns
    -------
    tuple of array of int and float
        An answer that is no worse, and the seconds that it took.
    """
    random = np.random.default_rng(seed)
    live = np.flatnonzero(problem.live)
    most, spent = np.inf if limits.seconds is None else limits.seconds, 0.0
    nodes = _NODES if limits.nodes is None else min(limits.nodes, _NODES)
    rounds = _MOST * len(live) if limits.seconds is None else np.inf
    reached, vain, tried = _distances(problem, bin), 0, 0
    while spent < most and tried < rounds and vain < _VAIN * len(live) and reached[0] > 0:
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
    """Return the distances of the bins from the mean in units of it, the greatest first, without rounding errors."""
    away = np.abs(problem.shares(bin)[problem.live] - problem.mean) / (problem.mean or 1.0)
    return -np.sort(-np.round(away, _DIGITS))


def _lower(one: Floats, other: Floats) -> bool:
    differ = np.flatnonzero(one != other)
    return bool(differ.size and one[differ[0]] < other[differ[0]])


def _part(problem: PlacementProblem, bin: Ints, live: Ints, random: np.random.Generator) -> Ints:
    """Return a few bins: mostly the one furthest from the mean, those of a moved group, and others by chance."""
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
    """Return the groups that are free: those on the bins, and on bins that drain; of very many some."""
    there = np.flatnonzero(np.isin(bin, bins) | problem.draining[bin])
    most = max(_PAIRS // len(bins), 1)
    return there if len(there) <= most else np.sort(random.permutation(there)[:most])
