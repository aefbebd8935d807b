"""Shrinks a failing run to the parts that make it fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Part = TypeVar("Part")


def shrink(parts: Sequence[Part], fails: Callable[[list[Part]], bool], most_runs: int = 300) -> list[Part]:
    """Remove parts, many at a time and then few, as long as the rest still fails.

    Parameters
    ----------
    parts : sequence
        What makes a run fail, in order.
    fails : callable
        Whether a run with some of the parts, in this order, fails.
    most_runs : int
        How often to try.

    Returns
    -------
    list
        Parts that still fail; without any one of them the run does not, unless the tries were used up.

    Examples
    --------
    >>> shrink(range(100), lambda parts: {13, 77} <= set(parts))
    [13, 77]
    """
    left = list(parts)
    size = max(len(left) // 2, 1)
    runs = 0
    while left:
        start, shorter = 0, False
        while start < len(left) and runs < most_runs:
            runs += 1
            candidate = left[:start] + left[start + size :]
            if fails(candidate):
                left, shorter = candidate, True
            else:
                start += size
        if runs >= most_runs or (size == 1 and not shorter):
            break
        size = max(size // 2, 1)
    return left
