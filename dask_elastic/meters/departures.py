"""How the rows of a source leave: their number and rate, how late they are, and how long sending takes."""

from __future__ import annotations

from dask_elastic.meters.counter_rate import CounterRate
from dask_elastic.meters.phase_time import PhaseTime

REPORTED_SECONDS = 2.0
"""The reported rate is the mean over so many seconds."""


class Departures:
    """Batches that leave a source, one after the other; times are in seconds.

    Attributes
    ----------
    rows : int
        Rows that have begun to leave.

    Examples
    --------
    >>> departures = Departures()
    >>> departures.begin(rows=3, due=9.5, now=10.0)
    >>> departures.lag(now=10.5)
    1.0
    >>> departures.end(now=11.0)
    >>> departures.rows, departures.lag(now=11.0), departures.lag(now=20.0)
    (3, 0.5, 0.0)
    """

    def __init__(self) -> None:
        self.rows = 0
        self._recent, self._recent_sending = CounterRate(REPORTED_SECONDS), CounterRate(REPORTED_SECONDS)
        self._sending = PhaseTime()
        # When the last batch began to leave, its lag then, and while it leaves, the time at which it was due.
        self._left_at, self._left_lag = 0.0, 0.0
        self._leaving: float | None = None

    def begin(self, rows: int, due: float, now: float) -> None:
        """Note that a batch begins to leave.

        Parameters
        ----------
        rows : int
            The number of its rows.
        due : float
            When it was due.
        now : float
            The time.
        """
        self.rows += rows
        self._left_at = now
        self._left_lag, self._leaving = now - due, due
        self._sending.begin(now)

    def end(self, now: float) -> None:
        """Note that the batch has left."""
        self._leaving = None
        self._sending.end(now)

    def per_second(self, now: float) -> float:
        """Return the recent rate, rows per second."""
        return self._recent.per_second(self.rows, now)

    def sending(self, now: float) -> float:
        """Return the recent share of time in which a batch was leaving, from 0 to 1."""
        return min(1.0, self._recent_sending.per_second(self._sending.total(now), now))

    def lag(self, now: float) -> float:
        """Return by how many seconds the last batch left later than it was due; 0 without any in recent seconds.

        The lag of a batch that cannot leave grows.
        """
        due = self._leaving
        if due is not None:
            return max(0.0, now - due)
        return max(0.0, self._left_lag) if now - self._left_at < REPORTED_SECONDS else 0.0
