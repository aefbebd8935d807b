"""A window: where it starts, how long it is, and how often an instance of it begins.

Notes
-----
Enorm, section 4.2; ERRATA has no entry for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True)
class Window:
    """A window over event time, in whole units of any one size: milliseconds, minutes.

    Parameters
    ----------
    start : int
        Where the first instance begins, counted from the origin of event time.
    length : int
        How long each instance is, above 0.
    frequency : int
        How long after an instance the next one begins, above 0: below the length instances overlap, above it there are
        gaps, and at the length the window tumbles.

    Raises
    ------
    PlanningError
        If a number is not whole, or length or frequency is not above 0.

    Notes
    -----
    Enorm, section 4.2. An instance [begin, end) holds its begin and not its end.

    Examples
    --------
    >>> Window(start=0, length=10, frequency=5).overlap
    2.0
    >>> Window.tumbling(15)
    Window(start=0, length=15, frequency=15)
    """

    start: int
    length: int
    frequency: int

    def __post_init__(self) -> None:
        for name in ("start", "length", "frequency"):
            object.__setattr__(self, name, whole(f"{name} of the window", getattr(self, name)))
        for name in ("length", "frequency"):
            if getattr(self, name) < 1:
                raise PlanningError(f"{name} of the window is {getattr(self, name)}: give a whole number above 0.")

    @classmethod
    def tumbling(cls, length: int, start: int = 0) -> Window:
        """Return the window whose instances follow each other without gap or overlap."""
        return cls(start, length, length)

    @property
    def overlap(self) -> float:
        """How many instances a moment belongs to, on average."""
        return self.length / self.frequency

    def ends(self, after: int, until: int) -> range:
        """Return where instances end, later than `after` and not later than `until`.

        Parameters
        ----------
        after, until : int
            The span of event time.

        Returns
        -------
        range
            The ends, ascending, as of a window that has always been there: `start` tells its phase only.

        Examples
        --------
        >>> list(Window(start=0, length=10, frequency=5).ends(after=0, until=20))
        [5, 10, 15, 20]
        """
        first = after + self.frequency - (after - self.start - self.length) % self.frequency
        return range(first, until + 1, self.frequency)


def checked(windows: Sequence[Window], slice: int) -> tuple[tuple[Window, ...], int]:
    """Return windows and the length of their partials, or say what is wrong with them.

    Parameters
    ----------
    windows : sequence of Window
        One window at least.
    slice : int
        The length of a partial.

    Raises
    ------
    PlanningError
        If there is no window, or the start, length or frequency of one is no multiple of the slice.

    Examples
    --------
    >>> checked([Window.tumbling(10), Window(start=5, length=15, frequency=15)], 10)
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.PlanningError: start, length and frequency must be multiples of the slice, 10, and are not
    for Window(start=5, length=15, frequency=15): give these other numbers, or a slice of 5.
    """
    if not isinstance(windows, Iterable):
        raise PlanningError(f"windows is {windows!r}: give a list of windows.")
    chosen = tuple(windows)
    for window in chosen:
        if not isinstance(window, Window):
            raise PlanningError(f"{window!r} is no window: give Window(start, length, frequency).")
    if not chosen:
        raise PlanningError("there is no window: give one at least.")
    size = whole("slice", slice)
    if size < 1:
        raise PlanningError(f"slice is {size}: give a whole number above 0.")
    wrong = [window for window in chosen if _largest_slice((window,)) % size]
    if wrong:
        raise PlanningError(
            f"start, length and frequency must be multiples of the slice, {size}, and are not for"
            f" {', '.join(map(str, wrong))}: give these other numbers, or a slice of {_largest_slice(chosen)}."
        )
    return chosen, size


def _largest_slice(windows: tuple[Window, ...]) -> int:
    """Return the longest slice of which every start, length and frequency is a multiple."""
    return math.gcd(*(number for window in windows for number in (window.start, window.length, window.frequency)))


def whole(name: str, value: object) -> int:
    """Return a whole number as an int, or say which number is none.

    Raises
    ------
    PlanningError
        If the value is not an integer of Python or NumPy; a bool is none.

    Examples
    --------
    >>> whole("slice", 2.5)
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.PlanningError: slice is 2.5: give a whole number, in a unit that is fine enough.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise PlanningError(f"{name} is {value!r}: give a whole number, in a unit that is fine enough.")
