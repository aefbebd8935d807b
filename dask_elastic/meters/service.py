"""The service rate: tuples that one core processes per busy second."""

from __future__ import annotations

import math

from dask_elastic.meters.ring import MeterError


class ServiceRate:
    r"""Measures :math:`\mu`, in tuples per busy second.

    Parameters
    ----------
    horizon : float
        The mean age of the measured work, in *busy* seconds; 1 s is comparable to a sliding window of 2 s. Idle time
        does not count, so the rate of an executor that was idle for an hour is still available.

    Raises
    ------
    MeterError
        If the horizon is not a positive, finite number.

    Notes
    -----
    The :math:`\mu_j` of Elasticutor, section 4.1. It is the quotient of two exponentially decayed sums, not a mean of
    quotients, so that many small batches and few large ones with the same cost per tuple give the same rate.

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
        # One tuple that is replaced as a whole, so that a reader never combines new rows with old seconds.
        self._sums = (0.0, 0.0)

    def add(self, rows: float, busy_seconds: float) -> None:
        """Add measured work.

        Parameters
        ----------
        rows : float
            Number of processed tuples.
        busy_seconds : float
            Their processing time. A negative time, from a clock that was set back, counts as 0.
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
