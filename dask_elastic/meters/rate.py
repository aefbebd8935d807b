"""How much per second: arrivals, rows, bytes."""

from __future__ import annotations

import math

from dask_elastic.meters.ring import SlotRing


class Rate:
    """Counts over the last seconds.

    Parameters
    ----------
    window : float
        How far back it looks, in seconds.
    slots : int
        Into how many slots the window is cut. The oldest counts by the share of it that is still in the window.

    Attributes
    ----------
    count : float
        All that was ever added.

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
        """How far back the meter looks, in seconds."""
        return self._ring.window

    def add(self, amount: float, now: float) -> None:
        """Count `amount` at the time `now`.

        Parameters
        ----------
        amount : float
            Rows, bytes, or whatever is counted.
        now : float
            The time in seconds.
        """
        self._ring.at(now)[0] += amount
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
            Amount per second. Until a whole window has passed since the first value, the mean is taken over the time
            that has passed, so that a job that has just begun does not look idle.
        """
        return self.total(now) / self._ring.span(now)


def _zero() -> list[float]:
    return [0.0]
