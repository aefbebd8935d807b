"""The cost of merging one result: 1, or its number of keys.

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
from dask_elastic.vocab.numbers import MOST_TOTAL
from dask_elastic.windows.window import Window

Keys: TypeAlias = Mapping[int, float] | Callable[[int, int], float]


class MergeCost:
    """The cost of merging one result: 1, or its number of keys.

    Parameters
    ----------
    keys : mapping, callable or None
        The number of keys of a result: a mapping by the result's length, or a function of its begin and end; None for a
        cost of 1 per result.
    windows : tuple of Window
        The windows whose results are merged.
    size : int
        The length of a partial.

    Attributes
    ----------
    of_length : dict of int to float, or None
        The cost by length, for all lengths that occur; None if `keys` is a function, so that the cost also depends on
        the time.

    Raises
    ------
    PlanningError
        If `keys` is none of these, lacks a length that occurs, or has a value that is negative or not finite.

    Examples
    --------
    >>> MergeCost({1: 10, 5: 40}, (Window.tumbling(5),), 1).partials(0, 5)
    50
    """

    def __init__(self, keys: Keys | None, windows: tuple[Window, ...], size: int):
        if not (keys is None or callable(keys) or isinstance(keys, Mapping)):
            raise PlanningError(
                f"keys is {keys!r}: give a mapping by length, or a function of a result's begin and end."
            )
        self.size = size
        self._keys = keys
        self.of_length: dict[int, float] | None = None
        if not callable(keys):
            self.of_length = _by_length(keys, [size, *(window.length for window in windows)])

    def window(self, begin: int, end: int) -> float:
        """Return the cost of one result.

        Parameters
        ----------
        begin, end : int
            The span of the result.

        Returns
        -------
        float
            1, or its number of keys.

        Raises
        ------
        PlanningError
            If the function of keys returns a number that is negative or not finite.
        """
        if self.of_length is not None:
            return self.of_length[end - begin]
        assert callable(self._keys)
        return _checked_keys(self._keys(begin, end), begin, end)

    def least_rate(self, length: int) -> float:
        """Return a lower bound of the cost per unit of time of partials and shorter windows.

        Parameters
        ----------
        length : int
            Windows of this length and longer ones are excluded.

        Returns
        -------
        float
            The bound; 0 if the cost depends on the time.
        """
        if self.of_length is None:
            return 0.0
        return min(cost / span for span, cost in self.of_length.items() if span < length or span == self.size)

    def partials(self, begin: int, end: int) -> float:
        """Return the cost of all partials in a span.

        Parameters
        ----------
        begin, end : int
            The span.

        Returns
        -------
        float
            The sum of the costs.
        """
        if self.of_length is not None:
            return self.of_length[self.size] * ((end - begin) // self.size)
        return math.fsum(self.window(at, at + self.size) for at in range(begin, end, self.size))


def _by_length(keys: Mapping[int, float] | None, lengths: list[int]) -> dict[int, float]:
    """Return the cost of a result, by length."""
    if keys is None:
        return dict.fromkeys(lengths, 1)
    missing = [length for length in lengths if length not in keys]
    if missing:
        raise PlanningError(f"keys lacks results of length {missing[0]}, it has {sorted(keys)}: add that length.")
    return {length: _checked_keys(keys[length], 0, length) for length in lengths}


def _checked_keys(count: Any, begin: int, end: int) -> float:
    """Return a number of keys as a Python number, since NumPy integers may overflow in sums."""
    if isinstance(count, int | np.integer) and 0 <= int(count) <= MOST_TOTAL:
        return int(count)
    if isinstance(count, float | np.floating) and 0 <= float(count) <= MOST_TOTAL:
        return float(count)
    raise PlanningError(f"keys is {count!r} for the span from {begin} to {end}: give a finite number, 0 or more.")
