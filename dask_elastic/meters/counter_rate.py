"""Recent rate of a counter that is read from time to time."""

from __future__ import annotations

from collections import deque

LEAST_SHARE = 0.05
"""Counts of less than this share of the window are taken for those of so much: sources begin with a burst of rows."""


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
        self.window = window
        # Moments and totals; only the first one may be older than the window.
        self._readings: deque[tuple[float, float]] = deque()

    def per_second(self, total: float, now: float) -> float:
        """Return the recent rate; called with each new total, at most once for each moment.

        Parameters
        ----------
        total : float
            The counter. What it had counted before the first call does not count.
        now : float
            The time in seconds.
        """
        readings = self._readings
        if readings and now < readings[-1][0]:
            # The clock was set back.
            readings.clear()
        if readings:
            # A counter whose writers end may be read a little lower than before.
            total = max(total, readings[-1][1])
        readings.append((now, total))
        begin = now - self.window
        while len(readings) > 1 and readings[1][0] <= begin:
            readings.popleft()
        since, before = readings[0]
        if since < begin and len(readings) > 1:
            # What was counted between two readings is taken to be spread evenly over the time between them.
            later, then = readings[1]
            before += (then - before) * (begin - since) / (later - since)
            since = begin
        return (total - before) / max(now - since, self.window * LEAST_SHARE)
