"""Load of an executor that has lasted: batches that were held up for a moment do not raise it."""

from __future__ import annotations

import math

from dask_elastic.meters.ring import MeterError

PERIOD = 1 / 3
"""Length of a period in seconds."""

PERIODS = 3
"""Periods in which a load must appear. What holds batches up for one period may raise the load of two."""


class LastingLoad:
    """The load to which some successive periods of measured work amount: the lowest one of them.

    Parameters
    ----------
    period : float
        Seconds that a period takes at least. It ends with a batch, so a period contains at least one.

    Raises
    ------
    MeterError
        If the period is not a positive, finite number.

    Notes
    -----
    The processing time of a batch contains what its thread has waited for: answers that user code needs, but also an
    import in another thread, the interpreter, or a core. The former recur in each period; the latter make a row seem a
    thousand times as expensive as it is, once.

    `add` must not be called by two threads at a time.

    Examples
    --------
    >>> load = LastingLoad()
    >>> for tenth in range(14):
    ...     load.add(rows=10, busy_seconds=0.01, now=tenth / 10)
    >>> round(load.cores(rows_per_second=100), 6)
    0.1
    >>> load.add(rows=1, busy_seconds=1.0, now=2.4)
    >>> round(load.cores(rows_per_second=100), 6)
    0.1
    >>> for second in (3.4, 4.4):
    ...     load.add(rows=1, busy_seconds=1.0, now=second)
    >>> load.cores(rows_per_second=100) > 1
    True
    """

    __slots__ = ("_began", "_busy", "_each", "_ended", "_other", "_rows", "period")

    def __init__(self, period: float = PERIOD):
        if not (math.isfinite(period) and period > 0):
            raise MeterError(f"period is {period!r}: give a positive number of seconds.")
        self.period = period
        self._began: float | None = None
        self._rows = 0
        self._busy = 0.0
        self._other = 0.0
        # Seconds of a row, as far as it is known.
        self._each = 0.0
        # Of the last periods: seconds of a row, and cores that other work kept busy.
        self._ended: tuple[tuple[float, float], ...] = ()

    def add(self, rows: int, busy_seconds: float, now: float) -> None:
        """Add a batch that has been processed.

        Parameters
        ----------
        rows : int
            The number of its rows; 0 for other work, such as timers that have fired.
        busy_seconds : float
            Its processing time.
        now : float
            The time in seconds.
        """
        if rows:
            self._rows += rows
            self._busy += busy_seconds
        else:
            self._other += busy_seconds
        began = self._began
        if began is None:
            began = self._began = now - busy_seconds
        # A clock that was set back ends the period, too; threads that read it at about the same time do not.
        if abs(now - began) >= self.period:
            self._end(now, max(now - began, self.period))

    def _end(self, now: float, length: float) -> None:
        if self._rows:
            self._each = self._busy / self._rows
        self._ended = (*self._ended[1 - PERIODS :], (self._each, self._other / length))
        self._began = now
        self._rows, self._busy, self._other = 0, 0.0, 0.0

    def cores(self, rows_per_second: float) -> float | None:
        """Return the busy cores that rows require at the processing times of each period, other work included.

        Parameters
        ----------
        rows_per_second : float
            The rows to process.

        Returns
        -------
        float or None
            The lowest load; None until enough periods have ended.
        """
        if len(self._ended) < PERIODS:
            return None
        return min(rows_per_second * each + other for each, other in self._ended)
