"""Ring of time slots, the storage of all meters with a sliding window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from dask_elastic.vocab.errors import ElasticError

T = TypeVar("T")


class MeterError(ElasticError):
    """A meter got an invalid argument; the message names the value and the limit."""


class SlotRing(Generic[T]):
    """A sliding window of time, divided into slots that each hold one value.

    Parameters
    ----------
    window : float
        The length of the window in seconds.
    slots : int
        Number of slots in the window. The ring holds one more, because the window starts within a slot.
    make : callable
        Makes the value of a new slot.

    Raises
    ------
    MeterError
        If the window is not a positive, finite number or there is no slot.

    Attributes
    ----------
    newest : tuple of (float, float, T) or None
        Start, end and value of the slot that was written last: nearly all writes are to the same one as before.

    Notes
    -----
    A slot is a pair of number and value and is replaced as a whole. A concurrent reader therefore sees the old slot or
    the new one, never the number of one with the value of the other.

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
        self.newest: tuple[float, float, T] | None = None
        # The newest slot that was more than a window ahead of a reader, and the time of that reader.
        self._ahead: tuple[float, float] | None = None

    def at(self, now: float) -> T:
        """Return the value of the slot at time `now`; a new slot replaces the oldest one.

        Parameters
        ----------
        now : float
            The time in seconds. A time before the window counts for the slot that replaced its own.

        Returns
        -------
        T
            The value, to be changed in place.
        """
        if (last := self.newest) is not None and last[0] <= now < last[1]:
            return last[2]
        number = math.floor(now / self._width)
        position = number % self._size
        cell = self._cells[position]
        if cell is None or cell[0] < number:
            if self._first is None:
                self._first = now
            cell = (number, self._make())
            self._cells[position] = cell
        if cell[0] == number:
            self.newest = number * self._width, (number + 1) * self._width, cell[1]
        return cell[1]

    def follow(self, now: float) -> None:
        """Forget all values if the clock was set back: each later one would count in a slot that does not end.

        Parameters
        ----------
        now : float
            The time of a reader, in seconds. A reader may be late, so that slots are ahead of it. They stay ahead of
            later readers, and no newer ones follow, only after a step of the clock.
        """
        newest = max((cell[0] for cell in list(self._cells) if cell is not None), default=-math.inf)
        if newest * self._width <= now + self.window:
            self._ahead = None
        elif self._ahead is None or self._ahead[0] != newest:
            self._ahead = newest, now
        elif now >= self._ahead[1] + self.window:
            self._cells = [None] * self._size
            self._first = self.newest = self._ahead = None

    def read(self, now: float, window: float | None = None) -> list[tuple[T, float]]:
        """Return the values within the window that ends at `now`, oldest first, with their shares.

        Parameters
        ----------
        now : float
            The time in seconds.
        window : float, optional
            A shorter window than the ring's own, in seconds.

        Returns
        -------
        list of (T, float)
            Each value and the fraction of its slot that is within the window: 1 except for the oldest slot.
        """
        start = now / self._width - (self._size - 1 if window is None else min(window / self._width, self._size - 1))
        oldest = math.floor(start)
        share = min(1.0, max(0.0, oldest + 1 - start))
        cells = sorted((cell for cell in list(self._cells) if cell is not None), key=_number)
        # A writer may be one slot ahead of the reader's `now`; its values are included.
        return [(value, share if number == oldest else 1.0) for number, value in cells if number >= oldest]

    def span(self, now: float) -> float:
        """Return how many seconds the window covers; less than `window` only shortly after the first value.

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
        if first is None or now < first - self.window:
            # The first value lies far ahead only if the clock was set back.
            return self.window
        return min(self.window, max(self._width, now - first))


def _number(cell: tuple[int, T]) -> int:
    return cell[0]
