"""The ring of time slots under every meter that looks at the last few seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from dask_elastic.vocab.errors import ElasticError

T = TypeVar("T")


class MeterError(ElasticError):
    """A meter was made or fed with something that it cannot measure; names the value and the limit."""


class SlotRing(Generic[T]):
    """A sliding window of time, cut into slots that each hold one value.

    Parameters
    ----------
    window : float
        The length of the window in seconds.
    slots : int
        How many slots the window has. The ring holds one more, because the window's start lies within a slot.
    make : callable
        Makes the value of a fresh slot.

    Raises
    ------
    MeterError
        If the window is not a positive, finite number or there is no slot.

    Notes
    -----
    A slot is a pair of its number and its value, and is replaced as a whole. A reader beside the writer therefore
    sees an old slot or a new one, never the value of one under the number of the other.

    Examples
    --------
    >>> ring = SlotRing(1.0, 10, lambda: [0])
    >>> ring.at(5.03)[0] += 2
    >>> ring.at(5.91)[0] += 3
    >>> [value for value, _ in ring.read(5.95)]
    [[2], [3]]
    >>> [value for value, _ in ring.read(6.2)]
    [[3]]
    """

    def __init__(self, window: float, slots: int, make: Callable[[], T]):
        if not (math.isfinite(window) and window > 0):
            raise MeterError(f"window is {window!r}: give a positive number of seconds.")
        if slots < 1:
            raise MeterError(f"slots is {slots!r}: give at least 1.")
        self.window = window
        self._width = window / slots
        self._make = make
        self._size = slots + 1
        self._cells: list[tuple[int, T] | None] = [None] * self._size
        self._first: float | None = None

    def at(self, now: float) -> T:
        """Return the value of the slot that `now` falls into, made afresh when time has reached a new slot.

        Parameters
        ----------
        now : float
            The time in seconds. A time older than the whole window counts for the slot that took its place.

        Returns
        -------
        T
            The value, to be changed in place.
        """
        number = math.floor(now / self._width)
        place = number % self._size
        cell = self._cells[place]
        if cell is None or cell[0] < number:
            if self._first is None:
                self._first = now
            cell = (number, self._make())
            self._cells[place] = cell
        return cell[1]

    def read(self, now: float, window: float | None = None) -> list[tuple[T, float]]:
        """Return the values within the window that ends at `now`, oldest first, each with its share.

        Parameters
        ----------
        now : float
            The time in seconds.
        window : float, optional
            A shorter window than the ring's own, in seconds.

        Returns
        -------
        list of (T, float)
            Each value and how much of its slot lies within the window: 1, but for the oldest slot.
        """
        start = now / self._width - (self._size - 1 if window is None else min(window / self._width, self._size - 1))
        oldest = math.floor(start)
        share = min(1.0, max(0.0, oldest + 1 - start))
        cells = sorted((cell for cell in list(self._cells) if cell is not None), key=_number)
        # A writer may be ahead of the reader's `now` by a slot; what it wrote is as current as can be.
        return [(value, share if number == oldest else 1.0) for number, value in cells if number >= oldest]

    def span(self, now: float) -> float:
        """Return how many seconds the window covers so far: less than `window` only just after the first value.

        Parameters
        ----------
        now : float
            The time in seconds.

        Returns
        -------
        float
            Seconds, at least the width of one slot.
        """
        first = self._first
        if first is None:
            return self.window
        return min(self.window, max(self._width, now - first))


def _number(cell: tuple[int, T]) -> int:
    return cell[0]
