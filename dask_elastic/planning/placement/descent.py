"""Descent: repeatedly brings the bin furthest from the mean nearer to it, by one move or one swap.

Goal
    A start for the solver, in a fraction of its time: good where the budget does not bind.
Heuristic
    Of all moves and swaps the one is taken that leaves the two bins nearest to the mean. With very many groups, only
    those on the bins at the other end are considered.
Not done
    Exchanges that first make things worse, and exchanges among more than two bins; see
    `dask_elastic.planning.placement.neighbourhood`.

Notes
-----
ALBIC, section 4.3.1, minimises the load distance and leaves the search to the solver; the solver starts from this
answer. Flux (section 2.2) lowers the variance by moves alone. By the first erratum the mean is exact.
"""

from __future__ import annotations

import numpy as np

from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import Floats, Ints, Mask

STEPS = 500
"""The most exchanges of a descent."""

_ENTRIES = 30_000
"""About the most exchanges that one step considers."""


def descend(draft: Draft, steps: int = STEPS) -> None:
    """Repeatedly bring the bin furthest from the mean nearer to it by one move or swap.

    Parameters
    ----------
    draft : Draft
        The placement to work on.
    steps : int
        The most moves and swaps.

    Examples
    --------
    >>> from dask_elastic.planning.placement.problem import PlacementProblem
    >>> draft = Draft(PlacementProblem([6, 3, 5, 4], current=[0, 0, 1, 1], bins=3))
    >>> descend(draft)
    >>> draft.shares.tolist()
    [7.0, 6.0, 5.0]
    """
    live = np.flatnonzero(draft.problem.live)
    for _ in range(steps):
        away = np.abs(draft.shares[live] - draft.problem.mean)
        if not _step(draft, int(live[np.argmax(away)]), float(away.max())):
            return


def looked_at(draft: Draft) -> int:
    """Return about how many exchanges one step considers."""
    problem = draft.problem
    inside = int(np.bincount(draft.bin, minlength=problem.bins).max(initial=0))
    return min((inside + 1) * (problem.groups + problem.bins), max(_ENTRIES, (inside + 1) ** 2))


def _step(draft: Draft, worst: int, distance: float) -> bool:
    """Make the exchange with another bin that leaves the two nearest to the mean, if it improves on `distance`."""
    problem = draft.problem
    problem.pause()
    inside = np.flatnonzero((draft.bin == worst) & ~problem.pinned)
    others, outside = _partners(draft, worst, len(inside))
    # A move out exchanges a group for nothing at a bin, a move in nothing for a group.
    out = np.append(inside, -1)
    back = np.concatenate([outside, np.full(len(others), -1)])
    partner = np.concatenate([draft.bin[outside], others])
    value = _after(draft, worst, out, back, partner)
    # Draining bins give groups and get none.
    value[:-1, problem.draining[partner]] = np.inf
    value[-1, len(outside) :] = np.inf
    noise = 1e-9 * problem.mean
    problem.pause()
    candidates = np.argwhere(value < distance - noise)
    ranked = candidates[np.argsort(value[tuple(candidates.T)], kind="stable")]
    for row, column in ranked[:50].tolist():
        if _exchange(draft, worst, int(partner[column]), int(out[row]), int(back[column])):
            return True
    return False


def _partners(draft: Draft, worst: int, inside: int) -> tuple[Ints, Ints]:
    """Return live bins, and groups on other bins, with which the worst bin may exchange groups."""
    problem = draft.problem
    elsewhere = (draft.bin != worst) & ~problem.pinned
    away = draft.shares - problem.mean
    opposite = np.argsort(away if away[worst] > 0 else -away, kind="stable")
    # Bins at the other end come first, and draining bins before all others.
    order = opposite[np.argsort(problem.live[opposite], kind="stable")]
    order = order[order != worst]
    groups = np.cumsum(np.bincount(draft.bin[elsewhere], minlength=problem.bins)[order])
    order = order[: 1 + int(np.searchsorted(groups, _ENTRIES / (inside + 1)))]
    near: Mask = np.zeros(problem.bins, dtype=np.bool_)
    near[order] = True
    others = np.flatnonzero(near & problem.live)
    return others, np.flatnonzero(elsewhere & near[draft.bin])


def _after(draft: Draft, worst: int, out: Ints, back: Ints, partner: Ints) -> Floats:
    """Return the greater distance of the two bins from the mean, for each pair of groups out and back."""
    problem = draft.problem
    weight = np.append(problem.weight, 0.0)
    change = weight[back][None, :] - weight[out][:, None]
    shares, strength, mean = draft.shares, problem.strength, problem.mean
    here = np.abs(shares[worst] + change / strength[worst] - mean)
    there = np.abs((shares[partner] - mean)[None, :] - change / strength[partner][None, :])
    there[:, problem.draining[partner]] = 0
    result: Floats = np.maximum(here, there)
    return result


def _exchange(draft: Draft, worst: int, partner: int, out: int, back: int) -> bool:
    """Swap two groups, or move one where the other is −1; return whether the rules allowed it."""
    if back < 0:
        if not draft.allows(out, partner):
            return False
        draft.move(out, partner)
        return True
    if out < 0:
        if not draft.allows(back, worst):
            return False
        draft.move(back, worst)
        return True
    # A swap may need the room that the other group leaves: move one first, and back again if the swap fails.
    first, second = (out, partner, worst), (back, worst, partner)
    if draft.problem.weight[out] > draft.problem.weight[back]:
        first, second = second, first
    for one, other in ((first, second), (second, first)):
        if draft.allows(one[0], one[1]):
            draft.move(one[0], one[1])
            if draft.allows(other[0], other[1]):
                draft.move(other[0], other[1])
                return True
            draft.move(one[0], one[2])
    return False
