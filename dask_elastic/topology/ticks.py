"""Ticks at which the sources of one process that have a rate send their rows, all of them at the same times."""

from __future__ import annotations

import math

TICK_SECONDS = 0.001
"""The least time between two ticks: rows that are due in between leave together."""

LONGEST_TICK = 0.02
"""The most time between two ticks, in seconds."""

LIGHT_LOAD = 0.09
"""Busy cores of a process up to which ticks are that short; with more load they are stretched up to `LONGEST_TICK`."""

LEAD = 0.1
"""Stretched ticks are this share of their length before their first row is due: reading and sending take a while."""

LOAD_SECONDS = 0.05
"""Seconds over which the load is measured."""

_STEP = 1.25
_TOLERANCE = 1e-3


class Ticks:
    """The time between two ticks, which follows the load of the process.

    Attributes
    ----------
    interval : float
        The least time between two ticks, in seconds.

    Notes
    -----
    Any thread may measure the load. Two that do so at once change the interval twice.

    Examples
    --------
    >>> ticks = Ticks()
    >>> for second in range(20):
    ...     ticks.note(now=second, busy=1.5 * second)
    >>> ticks.interval
    0.02
    """

    __slots__ = ("_measured", "interval")

    def __init__(self) -> None:
        self.interval = TICK_SECONDS
        self._measured = -math.inf, 0.0

    def within(self, longest: float) -> tuple[float, float]:
        """Return the interval of a source, and how long before its first row is due a tick may be, in seconds.

        Parameters
        ----------
        longest : float
            The most time between two ticks of the source, in seconds; `TICK_SECONDS` if it is shorter than that.
        """
        interval = min(self.interval, max(longest, TICK_SECONDS))
        return interval, interval * LEAD if interval > TICK_SECONDS else 0.0

    def is_due(self, now: float) -> bool:
        """Return whether `note` would take the load: reading it takes as long as a dozen calls."""
        return now - self._measured[0] >= LOAD_SECONDS

    def note(self, now: float, busy: float) -> None:
        """Take the load of the process; after `LOAD_SECONDS` the ticks get longer or shorter by a step.

        Parameters
        ----------
        now : float
            The time in seconds.
        busy : float
            The processor time that the process has used so far, in seconds.
        """
        if not self.is_due(now):
            return
        then, before = self._measured
        self._measured = now, busy
        step = _STEP if busy - before > LIGHT_LOAD * (now - then) else 1 / _STEP
        self.interval = min(max(self.interval * step, TICK_SECONDS), LONGEST_TICK)


def next_tick(due: float, last: float, interval: float) -> float:
    """Return the time of the next tick of a source.

    While the process is not busy, rows leave exactly when they are due. Stretched ticks are at the multiples of the
    interval, for all sources of a process: the rows of several sources then wait for a task together, and it processes
    them in one batch instead of one per source.

    Parameters
    ----------
    due : float
        When the next row is due, in seconds; a stretched tick may be earlier by less than the interval.
    last : float
        The time of the tick before.
    interval : float
        The least time between two ticks.

    Returns
    -------
    float
        Seconds on the same clock.

    Examples
    --------
    >>> next_tick(due=10.0004, last=9.0, interval=0.001)
    10.0004
    >>> round(next_tick(due=10.0304, last=9.0, interval=0.02), 6), round(next_tick(10.0304, 10.02, 0.02), 6)
    (10.02, 10.04)
    """
    if interval <= TICK_SECONDS:
        return max(due, last + interval)
    return max(math.floor(due / interval), math.floor(last / interval + _TOLERANCE) + 1) * interval


TICKS = Ticks()
"""The ticks of all sources with a rate in this process."""
