"""The schedule: how many flights of each month are replayed, and when a worker of each job is killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dask_elastic.cli.demo.outage import SETTLING

SECONDS_AFTER_LAST_LOSS = 2.0
"""Seconds of flights after a kill at the end: enough to restart with rows, and few for a job with a backlog."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of a replay.

    Parameters
    ----------
    months : int
        The number of months.
    month_seconds : float
        Seconds in which each month is replayed.
    loss_is_last : bool
        Whether workers are killed after the last month's seconds, for a short demonstration: no second is judged after
        the kill, so that none is needed for settling. Otherwise they are killed in the middle of a month.

    Examples
    --------
    >>> Schedule(3, 6.0, loss_is_last=False).seconds
    [6.0, 12.0, 6.0]
    >>> short = Schedule(3, 6.0, loss_is_last=True)
    >>> short.seconds
    [6.0, 6.0, 8.0]
    >>> short.loss_row([600, 1_200, 2_000])
    1800
    """

    months: int
    month_seconds: float
    loss_is_last: bool

    @property
    def seconds(self) -> list[float]:
        """Seconds of each month; that of the kill is longer by the seconds that are not judged."""
        more = SECONDS_AFTER_LAST_LOSS if self.loss_is_last else SETTLING
        return [self.month_seconds + more * (month == self._loss_month) for month in range(self.months)]

    def rows(self, rate: float) -> list[int]:
        """Return the number of flights of each month at a rate."""
        return [round(rate * seconds) for seconds in self.seconds]

    def loss_row(self, ends: Sequence[int]) -> int:
        """Return the row at which the workers are killed.

        Parameters
        ----------
        ends : sequence of int
            The number of rows that a job has read at the end of each month.
        """
        began, ended = [0, *ends][self._loss_month : self._loss_month + 2]
        part = self.month_seconds / self.seconds[-1] if self.loss_is_last else 0.5
        return began + int(part * (ended - began))

    @property
    def _loss_month(self) -> int:
        """The month of the kill, counted from 0."""
        return self.months - 1 if self.loss_is_last else (self.months - 1) // 2
