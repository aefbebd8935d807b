"""Processing time of a batch as a function of its rows, to limit the size of batches."""

from __future__ import annotations

import math

KEPT = 0.98
"""Factor on the weight of a batch with each later batch; about the last fifty batches count."""

GROWTH = 2
"""Limit of a batch's size as a multiple of the largest recent batch, since the cost of larger ones is unknown."""

FEW = 3
"""Weight of batches up to which the cost of a row is taken to be the mean: fewer do not show the fixed cost."""

FIXED_COSTS = 7
"""A batch may take as many times its fixed cost as it needs to reach 7/8 of the throughput of the largest batches."""


class BatchCost:
    """Fits ``busy = fixed + rows · each`` to recent batches.

    Notes
    -----
    A batch has a fixed cost, that of its calls, in addition to the cost of its rows. If the size of batches were
    derived from the mean cost per row, a fixed cost above the allowed time would make batches smaller, which raises the
    mean cost per row, down to batches of a single row. The size is therefore derived from the marginal cost of a row.

    Batches of nearly equal size hardly show the marginal cost: what they show is mostly noise, such as the time for
    which a thread waited for the interpreter. A cost that is estimated too high would keep batches small, and small
    batches would keep the estimate bad. The marginal cost is therefore taken one standard error lower than the fit
    says: where the fit is bad, batches grow, and batches of various sizes make it good.

    Examples
    --------
    >>> cost = BatchCost()
    >>> cost.rows_within(0.005) is None
    True
    >>> for rows in (64, 32, 64, 100, 200, 400, 800):
    ...     cost.add(rows, 0.0001 + rows * 0.00001)
    >>> cost.rows_within(0.005)
    500
    >>> round(cost.expected(100), 6)
    0.0011
    """

    __slots__ = ("_busy", "_busy_squared", "_largest", "_rows", "_rows_busy", "_rows_squared", "_weight")

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._busy = 0.0
        self._rows_squared = 0.0
        self._rows_busy = 0.0
        self._busy_squared = 0.0
        self._largest = 0.0

    def add(self, rows: int, busy: float) -> None:
        """Add the measurement of one batch.

        Parameters
        ----------
        rows : int
            The number of its rows.
        busy : float
            Its processing time in seconds.
        """
        self._weight = self._weight * KEPT + 1
        self._rows = self._rows * KEPT + rows
        self._busy = self._busy * KEPT + busy
        self._rows_squared = self._rows_squared * KEPT + rows * rows
        self._rows_busy = self._rows_busy * KEPT + rows * busy
        self._busy_squared = self._busy_squared * KEPT + busy * busy
        largest = self._largest * KEPT
        self._largest = largest if largest > rows else rows

    def rows_within(self, seconds: float) -> int | None:
        """Return the most rows of a batch.

        Parameters
        ----------
        seconds : float
            The processing time allowed for a batch without its fixed cost. A batch with a high fixed cost may take
            longer, up to `FIXED_COSTS` times this cost.

        Returns
        -------
        int or None
            At least 1 and at most twice the largest recent batch; None before the first batch.
        """
        if self._weight == 0 or self._busy <= 0:
            return None
        # Comparisons instead of calls of `max`: this is computed for each batch, and most batches are small.
        most = math.ceil(self._largest * GROWTH) or 1
        each = self._each()
        allowed = FIXED_COSTS * (self._busy - each * self._rows) / self._weight
        if allowed < seconds:
            allowed = seconds
        return most if each * most <= allowed else round(allowed / each) or 1

    def expected(self, rows: int) -> float | None:
        """Return the expected processing time of a batch in seconds; None before the first batch."""
        if self._weight == 0:
            return None
        each = self._each()
        return self._busy / self._weight + each * (rows - self._rows / self._weight)

    def _each(self) -> float:
        """Return the marginal cost of a row in seconds, one standard error lower than fitted.

        It is at least 0, and at most the mean cost, which includes the fixed cost.
        """
        mean = self._busy / self._rows
        if self._weight <= FEW:
            return mean
        spread = self._rows_squared - self._rows * self._rows / self._weight
        if spread <= 1e-9 * self._rows_squared:
            return 0.0
        common = self._rows_busy - self._rows * self._busy / self._weight
        slope = common / spread
        unexplained = self._busy_squared - self._busy * self._busy / self._weight - slope * common
        if unexplained > 0:
            slope -= math.sqrt(unexplained / (self._weight - 2) / spread)
        if slope <= 0:
            return 0.0
        return slope if slope < mean else mean
