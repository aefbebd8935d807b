"""The service rate: how many tuples one core does in a second that it is busy."""

from __future__ import annotations

import math

from dask_elastic.meters.ring import MeterError


class ServiceRate:
    r"""Measures :math:`\mu`, in tuples per busy second.

    Parameters
    ----------
    horizon : float
        The mean age of the work it judges by, in *busy* seconds; 1 s is as sharp as a plain window of 2 s. Idle time
        does not age the work, so an executor that was idle for an hour still knows its rate.

    Raises
    ------
    MeterError
        If the horizon is not a positive, finite number.

    Notes
    -----
    The :math:`\mu_j` of Elasticutor, section 4.1. It is the quotient of two decayed sums, never a mean of quotients,
    so that many small batches and few large ones with the same cost per tuple give the same rate.

    Examples
    --------
    >>> service = ServiceRate()
    >>> service.per_second() is None
    True
    >>> service.add(rows=500, busy_seconds=0.25)
    >>> service.per_second()
    2000.0
    """

    def __init__(self, horizon: float = 1.0):
        if not (math.isfinite(horizon) and horizon > 0):
            raise MeterError(f"horizon is {horizon!r}: give a positive number of busy seconds.")
        self._horizon = horizon
        # One tuple, replaced as a whole, so that a reader never pairs new rows with old seconds.
        self._sums = (0.0, 0.0)

    def add(self, rows: float, busy_seconds: float) -> None:
        """Note that `rows` tuples took `busy_seconds`.

        Parameters
        ----------
        rows : float
            How many tuples were done.
        busy_seconds : float
            How long the task worked on them. A negative time, as a clock that was set back gives it, counts as none.
        """
        busy = max(0.0, busy_seconds)
        kept = math.exp(-busy / self._horizon)
        old_rows, old_busy = self._sums
        self._sums = (old_rows * kept + rows, old_busy * kept + busy)

    def per_second(self) -> float | None:
        """Return the tuples per busy second.

        Returns
        -------
        float or None
            The rate; None before the first measured work.
        """
        rows, busy = self._sums
        return rows / busy if busy > 0 else None
