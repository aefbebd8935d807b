"""Estimate of the offered load of a job from the growth of its source lag.

Credits limit a source to what the executors process, so arrival rates do not show what the source would send; its lag
does. If the lag grows by s seconds per second, a part s of the tuples that become due is not admitted: the arrival rate
is 1 - s times the offered rate.
"""

from __future__ import annotations

MOST_GROWTH = 0.5
"""Bound on the growth; lag is averaged over seconds, and a single slow moment must not look like a large overload."""


class Lag:
    """Follows the source lag of one job.

    Examples
    --------
    >>> lag = Lag()
    >>> lag.add(0.2, now=10.0)
    >>> lag.add(0.45, now=11.0)
    >>> lag.offered_ratio
    1.3333333333333333
    >>> lag.add(0.4, now=12.0)
    >>> lag.offered_ratio
    1.0
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._growth = 0.0

    def add(self, seconds: float | None, now: float) -> None:
        """Add a measurement of the lag.

        Parameters
        ----------
        seconds : float or None
            How long tuples wait at their sources; None if unknown.
        now : float
            The time in seconds.
        """
        before, self._last, self._growth = self._last, None if seconds is None else (now, seconds), 0.0
        if before is not None and seconds is not None and now > before[0]:
            self._growth = min(max((seconds - before[1]) / (now - before[0]), 0.0), MOST_GROWTH)

    @property
    def offered_ratio(self) -> float:
        """Offered rate at the sources divided by the arrival rate; 1 while the lag does not grow."""
        return 1 / (1 - self._growth)
