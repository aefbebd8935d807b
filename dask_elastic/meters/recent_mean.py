"""Weighted mean of measurements over a sliding window."""

from __future__ import annotations

from dask_elastic.meters.ring import SlotRing


class RecentMean:
    """A weighted mean over a sliding window.

    Parameters
    ----------
    window : float
        The length of the window in seconds.
    slots : int
        Number of slots of the window. The oldest slot is weighted by the part of it that is within the window.

    Examples
    --------
    >>> sojourn = RecentMean(window=2.0)
    >>> sojourn.mean(now=10.0) is None
    True
    >>> sojourn.add(0.010, weight=300, now=10.0)
    >>> sojourn.add(0.050, weight=100, now=10.5)
    >>> sojourn.mean(now=11.0)
    0.02
    """

    def __init__(self, window: float = 2.0, slots: int = 10):
        self._ring: SlotRing[list[float]] = SlotRing(window, slots, _zeros)

    @property
    def window(self) -> float:
        """The length of the window in seconds."""
        return self._ring.window

    def add(self, value: float, weight: float, now: float) -> None:
        """Add a measurement.

        Parameters
        ----------
        value : float
            The measured value.
        weight : float
            How often it counts, such as the number of rows in a batch.
        now : float
            The time in seconds.
        """
        slot = self._ring.at(now)
        slot[0] += value * weight
        slot[1] += weight

    def mean(self, now: float) -> float | None:
        """Return the mean over the window that ends at `now`.

        Parameters
        ----------
        now : float
            The time in seconds.

        Returns
        -------
        float or None
            The mean; None if nothing was added within the window.
        """
        total, weight = self._sums(now)
        return total / weight if weight > 0 else None

    def weight(self, now: float) -> float:
        """Return the sum of the weights over the window that ends at `now`.

        Parameters
        ----------
        now : float
            The time in seconds.

        Returns
        -------
        float
            The weight of this mean when it is combined with others.
        """
        return self._sums(now)[1]

    def _sums(self, now: float) -> tuple[float, float]:
        self._ring.follow(now)
        total = weight = 0.0
        for (its_total, its_weight), share in self._ring.read(now):
            total += its_total * share
            weight += its_weight * share
        return total, weight


def _zeros() -> list[float]:
    return [0.0, 0.0]
