"""The mean of what was measured in the last seconds, each value with its weight."""

from __future__ import annotations

from dask_elastic.meters.ring import SlotRing


class RecentMean:
    """A weighted mean over the last seconds.

    Parameters
    ----------
    window : float
        How far back it looks, in seconds.
    slots : int
        Into how many slots the window is cut. The oldest counts by the share of it that is still in the window.

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
        self._ring: SlotRing[list[float]] = SlotRing(window, slots, _nothing)

    @property
    def window(self) -> float:
        """How far back the meter looks, in seconds."""
        return self._ring.window

    def add(self, value: float, weight: float, now: float) -> None:
        """Note a value that so many things had in the mean.

        Parameters
        ----------
        value : float
            What was measured.
        weight : float
            How many times it counts: the rows of a batch that shared it.
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
            The mean; None when nothing was noted within the window.
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
            What to weigh this mean by, where it is joined with others.
        """
        return self._sums(now)[1]

    def _sums(self, now: float) -> tuple[float, float]:
        total = weight = 0.0
        for (its_total, its_weight), share in self._ring.read(now):
            total += its_total * share
            weight += its_weight * share
        return total, weight


def _nothing() -> list[float]:
    return [0.0, 0.0]
