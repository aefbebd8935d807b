"""Recent rate of a counter that is read from time to time."""

from __future__ import annotations

from dask_elastic.meters.rate import Rate


class CounterRate:
    """Turns the totals of a counter, such as rows or busy seconds so far, into a rate per second.

    Parameters
    ----------
    window : float
        The rate is the mean over so many seconds.

    Examples
    --------
    >>> rate = CounterRate(window=2.0)
    >>> [rate.per_second(total, now) for now, total in [(0.0, 500), (1.0, 600), (2.0, 700), (9.0, 700)]]
    [0.0, 100.0, 100.0, 0.0]
    """

    def __init__(self, window: float = 2.0):
        self._rate = Rate(window)
        self._total: float | None = None

    def per_second(self, total: float, now: float) -> float:
        """Return the recent rate; called with each new total, at most once for each moment.

        Parameters
        ----------
        total : float
            The counter. What it had counted before the first call does not count.
        now : float
            The time in seconds.
        """
        # A counter whose writers end may be read a little lower than before.
        grown = 0.0 if self._total is None else max(0.0, total - self._total)
        self._total = total if self._total is None else max(total, self._total)
        self._rate.add(grown, now)
        return self._rate.per_second(now)
