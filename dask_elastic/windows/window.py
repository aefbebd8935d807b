"""Windows over event time: start, length and frequency.

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
    """A window over event time.

    All three numbers are integers in the same unit, such as milliseconds or minutes.

    Parameters
    ----------
    start : int
        When the first instance begins, counted from the origin of event time.
    length : int
        The length of each instance, above 0.
    frequency : int
        The time from the begin of one instance to the begin of the next, above 0. Instances overlap if it is less than
        the length (a sliding window), adjoin if it is equal (a tumbling window), and leave gaps if it is greater.

    Raises
    ------
    PlanningError
        If a number is not an integer, or length or frequency is not above 0.

    Notes
    -----
    Enorm, section 4.2. An instance is the half-open interval [begin, end).

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
            object.__setattr__(self, name, as_whole(f"{name} of the window", getattr(self, name)))
        for name in ("length", "frequency"):
            if getattr(self, name) < 1:
                raise PlanningError(f"{name} of the window is {getattr(self, name)}: give an integer above 0.")

    @classmethod
    def tumbling(cls, length: int, start: int = 0) -> Window:
        """Return a window whose instances adjoin, without gap or overlap.

        Parameters
        ----------
        length : int
            The length of each instance, above 0.
        start : int
            When the first instance begins.

        Returns
        -------
        Window
            The window; its frequency is its length.

        Raises
        ------
        PlanningError
            If a number is not an integer, or the length is not above 0.

        Examples
        --------
        >>> Window.tumbling(15, start=5)
        Window(start=5, length=15, frequency=15)
        """
        return cls(start, length, length)

    @property
    def overlap(self) -> float:
        """The mean number of instances that contain a point in time."""
        return self.length / self.frequency

    def ends(self, after: int, until: int) -> range:
        """Return the ends of instances, later than `after` and not later than `until`.

        Parameters
        ----------
        after, until : int
            The span of event time.

        Returns
        -------
        range
            The ends, ascending. `start` only sets the phase: instances that begin before it are included.

        Examples
        --------
        >>> list(Window(start=0, length=10, frequency=5).ends(after=0, until=20))
        [5, 10, 15, 20]
        """
        first = after + self.frequency - (after - self.start - self.length) % self.frequency
        return range(first, until + 1, self.frequency)


def check_windows(windows: Sequence[Window], slice: int) -> tuple[tuple[Window, ...], int]:
    """Validate windows and the length of their partials.

    Parameters
    ----------
    windows : sequence of Window
        At least one window.
    slice : int
        The length of a partial, in the windows' unit.

    Returns
    -------
    tuple of (tuple of Window, int)
        The windows and the slice.

    Raises
    ------
    PlanningError
        If there is no window, the slice is not an integer above 0, or the start, length or frequency of a window is not
        a multiple of the slice.

    Examples
    --------
    >>> check_windows([Window.tumbling(10), Window(start=5, length=15, frequency=15)], 10)
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.PlanningError: start, length and frequency must be multiples of the slice, 10, but are not
    for Window(start=5, length=15, frequency=15): change these windows, or use a slice of 5.
    """
    if not isinstance(windows, Iterable):
        raise PlanningError(f"windows is {windows!r}: give a list of windows.")
    chosen = tuple(windows)
    for window in chosen:
        if not isinstance(window, Window):
            raise PlanningError(f"{window!r} is not a window: give Window(start, length, frequency).")
    if not chosen:
        raise PlanningError("the list of windows is empty: give at least one.")
    size = as_whole("slice", slice)
    if size < 1:
        raise PlanningError(f"slice is {size}: give an integer above 0.")
    wrong = [window for window in chosen if _largest_slice((window,)) % size]
    if wrong:
        raise PlanningError(
            f"start, length and frequency must be multiples of the slice, {size}, but are not for"
            f" {', '.join(map(str, wrong))}: change these windows, or use a slice of {_largest_slice(chosen)}."
        )
    return chosen, size


def _largest_slice(windows: tuple[Window, ...]) -> int:
    """Return the greatest slice that divides every start, length and frequency."""
    return math.gcd(*(number for window in windows for number in (window.start, window.length, window.frequency)))


def as_whole(name: str, value: object) -> int:
    """Return an integer of Python or NumPy as an int.

    Parameters
    ----------
    name : str
        What the value is, for the error text.
    value : object
        The value.

    Returns
    -------
    int
        The value.

    Raises
    ------
    PlanningError
        If the value is not an integer; a bool is not one.

    Examples
    --------
    >>> as_whole("slice", 2.5)
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.PlanningError: slice is 2.5: give an integer; choose a finer unit of time if needed.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise PlanningError(f"{name} is {value!r}: give an integer; choose a finer unit of time if needed.")
