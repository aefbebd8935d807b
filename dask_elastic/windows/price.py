"""What it costs to merge a result: the number of its keys, or 1.

Notes
-----
Enorm, section 6.1, which counts results or keys; ERRATA has no entry for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.windows.window import Window

Keys: TypeAlias = Mapping[int, float] | Callable[[int, int], float]


class Price:
    """What it costs to merge a result: the number of its keys, or 1.

    By count or by lengths `of_length` has it for all lengths that occur; it is None where the time matters as well.

    Parameters
    ----------
    keys : mapping, callable or None
        How many keys a result has: by length, or by begin and end; None for a price of 1.
    windows : tuple of Window
        Whose results are merged.
    size : int
        The length of a partial.

    Raises
    ------
    PlanningError
        If keys are none of these, a length that occurs is missing, or a number is no number of keys.
    """

    def __init__(self, keys: Keys | None, windows: tuple[Window, ...], size: int):
        if not (keys is None or callable(keys) or isinstance(keys, Mapping)):
            raise PlanningError(f"keys is {keys!r}: give numbers by length, or a function of a span's begin and end.")
        self.size = size
        self._keys = keys
        self.of_length: dict[int, float] | None = None
        if not callable(keys):
            self.of_length = _by_length(keys, [size, *(window.length for window in windows)])

    def window(self, begin: int, end: int) -> float:
        """Return the cost of one result over a span."""
        if self.of_length is not None:
            return self.of_length[end - begin]
        assert callable(self._keys)
        return _checked_keys(self._keys(begin, end), begin, end)

    def least_rate(self, length: int) -> float:
        """Return what partials and windows below a length cost at least for each unit of time that they span."""
        if self.of_length is None:
            return 0.0
        return min(cost / span for span, cost in self.of_length.items() if span < length or span == self.size)

    def partials(self, begin: int, end: int) -> float:
        """Return the cost of all partials of a span."""
        if self.of_length is not None:
            return self.of_length[self.size] * ((end - begin) // self.size)
        return math.fsum(self.window(at, at + self.size) for at in range(begin, end, self.size))


def _by_length(keys: Mapping[int, float] | None, lengths: list[int]) -> dict[int, float]:
    """Return the cost of a result of each length."""
    if keys is None:
        return dict.fromkeys(lengths, 1)
    missing = [length for length in lengths if length not in keys]
    if missing:
        raise PlanningError(f"keys has no number for results of length {missing[0]}: it has {sorted(keys)}.")
    return {length: _checked_keys(keys[length], 0, length) for length in lengths}


def _checked_keys(count: Any, begin: int, end: int) -> float:
    """Return a number of keys if it is one, as Python's: those of NumPy may overflow when they are added."""
    if isinstance(count, int | np.integer) and count >= 0:
        return int(count)
    if isinstance(count, float | np.floating) and 0 <= count < math.inf:
        return float(count)
    raise PlanningError(f"keys is {count!r} for the span from {begin} to {end}: give a number of 0 or more.")
