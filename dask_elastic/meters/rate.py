"""Rate per second of arrivals, rows or bytes over a sliding window."""

from __future__ import annotations

import math

from dask_elastic.meters.ring import SlotRing


class Rate:
    """A counter over a sliding window.

    Parameters
    ----------
    window : float
        The length of the window in seconds.
    slots : int
        Number of slots of the window. The oldest slot is weighted by the part of it that is within the window.

    Attributes
    ----------
    count : float
        The total since the start.

    Examples
    --------
    >>> arrivals = Rate(window=2.0)
    >>> for tenth in range(50):
    ...     arrivals.add(100, now=tenth / 10)
    >>> round(arrivals.per_second(5.0))
    1000
    >>> arrivals.per_second(60.0)
    0.0
    """

    def __init__(self, window: float = 1.0, slots: int = 10):
        self.count = 0.0
        self._ring: SlotRing[list[float]] = SlotRing(window, slots, _zero)

    @property
    def window(self) -> float:
        """The length of the window in seconds."""
        return self._ring.window

    def add(self, amount: float, now: float) -> None:
        """Add an amount.

        Parameters
        ----------
        amount : float
            Rows, bytes, or other units.
        now : float
            The time in seconds.
        """
        newest = self._ring.newest
        # Nearly all amounts are added to the same slot as the one before: without a call.
        cell = newest[2] if newest is not None and newest[0] <= now < newest[1] else self._ring.at(now)
        cell[0] += amount
        self.count += amount

    def total(self, now: float) -> float:
        """Return the sum over the window that ends at `now`.

        Parameters
        ----------
        now : float
            The time in seconds.

        Returns
        -------
        float
            The sum.
        """
        self._ring.follow(now)
        return math.fsum(value[0] * share for value, share in self._ring.read(now))

    def per_second(self, now: float) -> float:
        """Return the mean rate over the window that ends at `now`.

        Parameters
        ----------
        now : float
            The time in seconds.

        Returns
        -------
        float
            Amount per second. Until a whole window has passed since the first value, the mean is over the time that
            has passed, so that a new job does not appear idle.
        """
        return self.total(now) / self._ring.span(now)


def _zero() -> list[float]:
    return [0.0]
