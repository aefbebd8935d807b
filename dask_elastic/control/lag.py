"""How far a job lags behind its sources, and how much of what they have it is falling behind by.

Credits hold a source to what the executors take, so that arrivals say nothing of what it would send. Its lag does: of
tuples that are due in a second, those that make the lag longer are not taken. Where it grows by s seconds a second,
what arrives is 1 - s of what is due.
"""

from __future__ import annotations

MOST_GROWTH = 0.5
"""Lags are means over the last seconds; beyond that a single slow moment would be taken for a flood."""


class Lag:
    """Follows the lag of one job.

    Examples
    --------
    >>> lag = Lag()
    >>> lag.add(0.2, now=10.0)
    >>> lag.add(0.45, now=11.0)
    >>> lag.held_back
    1.3333333333333333
    >>> lag.add(0.4, now=12.0)
    >>> lag.held_back
    1.0
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._growth = 0.0

    def add(self, seconds: float | None, now: float) -> None:
        """Note how long tuples wait at their sources.

        Parameters
        ----------
        seconds : float or None
            The lag; None where it is not known.
        now : float
            When, in seconds.
        """
        before, self._last, self._growth = self._last, None if seconds is None else (now, seconds), 0.0
        if before is not None and seconds is not None and now > before[0]:
            self._growth = min(max((seconds - before[1]) / (now - before[0]), 0.0), MOST_GROWTH)

    @property
    def held_back(self) -> float:
        """What is due at the sources, in parts of what they are let send; 1 while the lag does not grow."""
        return 1 / (1 - self._growth)
