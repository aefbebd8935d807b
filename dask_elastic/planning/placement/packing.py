"""Packs parts on bins, heaviest first onto the least loaded bin.

Goal
    A sufficient balance, or that there is none with these parts, within a millisecond or two for thousands of parts.
Heuristic
    The rule of the longest processing time first. It is not tried where some bin must be overfull.
Not done
    Other orders; the caller splits parts and packs again.

Notes
-----
ALBIC, section 2.1 (COLA), without a listing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapreplace

import numpy as np

from dask_elastic.planning.checked_arrays import SLACK, Floats, Ints
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.turns import in_turns


def packed(problem: PlacementProblem, label: Ints, size: Floats, most: float) -> Ints | None:
    """Return the bin of each group, with the parts on bins, heaviest first onto the least loaded one.

    Parameters
    ----------
    problem : PlacementProblem
        The bins.
    label : array of int
        The part of each group.
    size : array of float
        The weight of each part.
    most : float
        The greatest share of its capacity that a bin should bear.

    Returns
    -------
    array of int or None
        The bin of each group. None if no packing keeps `most`, or if this one does not on bins of different strength.

    Examples
    --------
    >>> problem = PlacementProblem([3, 2, 2, 1], current=[0, 0, 0, 0], bins=2)
    >>> packed(problem, np.array([0, 1, 1, 2]), np.array([3.0, 4.0, 1.0]), most=4.0).tolist()
    [1, 0, 0, 1]
    >>> packed(problem, np.array([0, 1, 1, 0]), np.array([5.0, 3.0]), most=4.0) is None
    True
    """
    if _crowds(problem, size, most):
        return None
    order = np.argsort(-size, kind="stable")
    strength, live = problem.strength, np.flatnonzero(problem.live)
    if np.ptp(strength[live]) <= SLACK * strength[live].max():
        return _on_equal_bins(live, order, size, problem.pause)[label]
    shares, each = np.where(problem.live, 0.0, np.inf), 1 / strength
    place, after, sizes = np.zeros(len(size), dtype=np.int64), np.empty(problem.bins), size.tolist()
    # Where no bin is twice as strong as another, parts go to empty bins first, the strongest of them.
    empty = live[np.argsort(-strength[live], kind="stable")]
    if strength[empty[0]] <= 2 * strength[empty[-1]]:
        first, empty = order[: len(empty)], empty[: len(order)]
        place[first], shares[empty] = empty, size[first] / strength[empty]
        if (shares[empty] > most).any():
            return None
        order = order[len(first) :]
    for part in in_turns(order.tolist(), problem.pause):
        np.multiply(each, sizes[part], out=after)
        after += shares
        bin = int(after.argmin())
        place[part] = bin
        shares[bin] += sizes[part] / strength[bin]
        if shares[bin] > most:
            return None
    return place[label]


def _crowds(problem: PlacementProblem, size: Floats, most: float) -> bool:
    """Return whether every packing loads some bin with more: of k bins + 1 parts, one bin gets k + 1."""
    problem.pause()
    bins, limit = int(problem.live.sum()), most * float(problem.strength.max())
    sums = np.append(0.0, np.cumsum(np.sort(size)[::-1]))
    for several in range((len(size) - 1) // bins + 1):
        last = several * bins + 1
        if sums[last] - sums[last - several - 1] > limit * (1 + SLACK):
            return True
    return False


def _on_equal_bins(bins: Ints, order: Ints, size: Floats, pause: Callable[[], None]) -> Ints:
    """Return the bin of each part, given the parts by falling weight."""
    place = np.zeros(len(size), dtype=np.int64)
    # Each bin gets a part before any bin gets a second one.
    first, later = order[: len(bins)], order[len(bins) :]
    place[first] = bins[: len(first)]
    loads = np.append(size[first], np.zeros(len(bins) - len(first)))
    # A list by rising load and number is a heap.
    least = np.lexsort((bins, loads))
    queue = list(zip(loads[least].tolist(), bins[least].tolist(), strict=True))
    chosen = []
    for weight in in_turns(size[later].tolist(), pause):
        load, bin = queue[0]
        chosen.append(bin)
        heapreplace(queue, (load + weight, bin))
    place[later] = chosen
    return place
