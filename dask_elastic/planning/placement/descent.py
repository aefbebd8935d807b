"""Descent: the bin furthest from the mean is brought nearer to it by one move or one swap, again and again.

Goal
    A first answer for the solver, in a part of its time: good where the budget does not bind.
Heuristic
    The exchange is taken that leaves the two bins nearest to the mean, of a group for another one or for none. Of very
    many groups, only those on the bins at the other end are looked at.
Not done
    Exchanges that first make things worse, and exchanges among more than two bins; see
    `dask_elastic.planning.placement.neighbourhood`.

Notes
-----
ALBIC, section 4.3.1, asks for the least load distance and leaves the search to the solver; this is what the solver
starts from. Flux (section 2.2) lowers the variance by moves alone. No erratum concerns it, but that the mean is exact
(the first).
"""

from __future__ import annotations

import numpy as np

from dask_elastic.planning.placement.problem import Draft, Floats, Ints, Mask

STEPS = 500
"""How many exchanges a descent makes at most."""

_ENTRIES = 30_000
"""How many exchanges are looked at in one step, more or less."""


def descend(draft: Draft, steps: int = STEPS) -> None:
    """Bring the bin furthest from the mean nearer to it by one move or swap, again and again.

    Parameters
    ----------
    draft : Draft
        The placement to work on.
    steps : int
        How many moves or swaps at most.

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
    """Return how many exchanges one step looks at, more or less."""
    problem = draft.problem
    inside = int(np.bincount(draft.bin, minlength=problem.bins).max(initial=0))
    return min((inside + 1) * (problem.groups + problem.bins), max(_ENTRIES, (inside + 1) ** 2))


def _step(draft: Draft, worst: int, distance: float) -> bool:
    """Make the exchange with one other bin that leaves the two nearest to the mean, if it leaves both nearer."""
    problem = draft.problem
    inside = np.flatnonzero((draft.bin == worst) & ~problem.pinned)
    others, outside = _partners(draft, worst, len(inside))
    # A move out exchanges a group for nothing at a bin, a move in nothing for a group.
    out = np.append(inside, -1)
    back = np.concatenate([outside, np.full(len(others), -1)])
    partner = np.concatenate([draft.bin[outside], others])
    value = _after(draft, worst, out, back, partner)
    # What drains gives groups and gets none.
    value[:-1, problem.draining[partner]] = np.inf
    value[-1, len(outside) :] = np.inf
    noise = 1e-9 * problem.mean
    candidates = np.argwhere(value < distance - noise)
    ranked = candidates[np.argsort(value[tuple(candidates.T)], kind="stable")]
    for row, column in ranked[:50].tolist():
        if _exchange(draft, worst, int(partner[column]), int(out[row]), int(back[column])):
            return True
    return False


def _partners(draft: Draft, worst: int, inside: int) -> tuple[Ints, Ints]:
    """Return the bins that stay, and the groups elsewhere, with which the worst bin may exchange groups."""
    problem = draft.problem
    elsewhere = (draft.bin != worst) & ~problem.pinned
    away = draft.shares - problem.mean
    opposite = np.argsort(away if away[worst] > 0 else -away, kind="stable")
    # Bins at the other end come first, and those that drain before all others.
    order = opposite[np.argsort(problem.live[opposite], kind="stable")]
    order = order[order != worst]
    groups = np.cumsum(np.bincount(draft.bin[elsewhere], minlength=problem.bins)[order])
    order = order[: 1 + int(np.searchsorted(groups, _ENTRIES / (inside + 1)))]
    near: Mask = np.zeros(problem.bins, dtype=np.bool_)
    near[order] = True
    others = np.flatnonzero(near & problem.live)
    return others, np.flatnonzero(elsewhere & near[draft.bin])


def _after(draft: Draft, worst: int, out: Ints, back: Ints, partner: Ints) -> Floats:
    """Return the greater distance from the mean of the two bins, for each group out and each group back."""
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
    """Swap two groups, either of which may be none, or leave all as it was."""
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
    # A swap may need the room that the other group leaves: put one aside, and back again where the swap fails.
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
