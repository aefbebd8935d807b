"""Processing time of a batch as a function of its rows, to limit the size of batches."""

from __future__ import annotations

KEPT = 0.95
"""Factor on the weight of a batch with each later batch; about the last twenty batches count."""

GROWTH = 2
"""Limit of a batch's size as a multiple of the largest recent batch, since the cost of larger ones is unknown."""

FEW = 3
"""Weight of batches of equal size from which the next batch is made larger, to estimate the fixed cost."""


class BatchCost:
    """Fits ``busy = fixed + rows · each`` to recent batches.

    Notes
    -----
    A batch has a fixed cost, that of its calls, in addition to the cost of its rows. If the size of batches were
    derived from the mean cost per row, a fixed cost above the allowed time would make batches smaller, which raises the
    mean cost per row, down to batches of a single row. The size is therefore derived from the marginal cost of a row.

    Examples
    --------
    >>> cost = BatchCost()
    >>> cost.rows_within(0.005) is None
    True
    >>> for rows in (64, 32, 64, 100, 200, 400, 800):
    ...     cost.add(rows, 0.010 + rows * 0.00001)
    >>> cost.rows_within(0.005)
    500
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._busy = 0.0
        self._rows_squared = 0.0
        self._rows_busy = 0.0
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
        self._largest = max(self._largest * KEPT, rows)

    def rows_within(self, seconds: float) -> int | None:
        """Return how many rows can be processed in a time, without the fixed cost.

        Parameters
        ----------
        seconds : float
            The time.

        Returns
        -------
        int or None
            At least 1 and at most twice the largest recent batch; None before the first batch.
        """
        if self._weight == 0 or self._busy <= 0:
            return None
        most = max(1, int(self._largest * GROWTH))
        each = self._each()
        return most if each * most <= seconds else max(1, round(seconds / each))

    def _each(self) -> float:
        """Return the marginal cost of a row in seconds; at most the mean cost, which includes the fixed cost."""
        mean = self._busy / self._rows
        spread = self._weight * self._rows_squared - self._rows * self._rows
        if spread <= 1e-9 * self._weight * self._rows_squared:
            # Batches of equal size do not show the fixed cost. After a few of them, a marginal cost of 0 makes the next
            # batch larger.
            return mean if self._weight < FEW else 0.0
        slope = (self._weight * self._rows_busy - self._rows * self._busy) / spread
        return min(max(slope, 0.0), mean)
