"""The cheapest way to form one instance from slices and from shorter instances that are complete.

Goal
    The inputs with the fewest keys, or the fewest results, as they are when the instance closes.
Method
    The shortest path from the begin of the instance to its end, in the DAG whose edges are the slices and the complete
    instances within it. Unlike `consolidation.plan`, which plans the steady state ahead, it takes only what is there,
    so that the first instances after a start, a restart or a change are formed of slices.
Not done
    Results that would have to be formed first: shorter instances close before longer ones in any case.

Notes
-----
Enorm, section 6.1: the DAG and the numbers of keys, partial and complete, decide at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""The number of the first slice, and of the first one behind."""


def cheapest_inputs(begin: int, end: int, complete: Mapping[Span, float], keys: Mapping[int, float]) -> list[Span]:
    """Return the spans of slices and complete instances that form an instance at the least cost.

    Parameters
    ----------
    begin, end : int
        The number of its first slice, and of the first one behind it.
    complete : mapping of (int, int) to float
        The keys of each complete instance.
    keys : mapping of int to float
        The keys of slices, where they are known; others have as many as these on average.

    Returns
    -------
    list of (int, int)
        Adjoining spans, in the order of time. At equal cost the one with fewer spans.

    Examples
    --------
    >>> cheapest_inputs(0, 4, {(0, 2): 10, (2, 4): 10}, keys={})
    [(0, 2), (2, 4)]
    >>> cheapest_inputs(0, 4, {(0, 2): 10}, keys={0: 3, 1: 3, 2: 3, 3: 3})
    [(0, 1), (1, 2), (2, 3), (3, 4)]
    """
    known = [keys[number] for number in range(begin, end) if number in keys]
    # Results of few slices have hardly more keys than a slice: without any measure, each input costs the same.
    usual = sum(known) / len(known) if known else min(complete.values(), default=1.0)
    into: dict[int, list[tuple[int, float]]] = {}
    for (first, last), cost in complete.items():
        if begin <= first < last <= end:
            into.setdefault(last, []).append((first, cost))
    least: list[tuple[float, int, int]] = [(0.0, 0, begin)]
    for reached in range(begin + 1, end + 1):
        ways = [(reached - 1, keys.get(reached - 1, usual)), *into.get(reached, ())]
        least.append(min((least[first - begin][0] + cost, least[first - begin][1] + 1, first) for first, cost in ways))
    path: list[Span] = []
    while end > begin:
        first = least[end - begin][2]
        path.append((first, end))
        end = first
    return path[::-1]
