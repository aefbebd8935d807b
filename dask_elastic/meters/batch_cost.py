"""What a batch costs by its size, and so how large a batch may be."""

from __future__ import annotations

KEPT = 0.95
"""Share of its weight that a batch keeps when the next one comes: the last twenty or so count."""

GROWTH = 2
"""No batch may be more than this many times as large as the largest of late: beyond that nothing is known."""

FEW = 3
"""Before this many batches, their mean is all there is to go by."""


class BatchCost:
    """Fits ``busy = fixed + rows · each`` to the batches of late.

    Notes
    -----
    A batch has a fixed cost, that of the calls, beside the cost of its rows. If the size of a batch followed from the
    mean cost of a row, a fixed cost above the time that a batch may take would make batches ever smaller, each row
    ever dearer, and a single row the end of it. What counts is what one row more costs.

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
        """Note a batch.

        Parameters
        ----------
        rows : int
            Its rows.
        busy : float
            Seconds for which it kept a core busy.
        """
        self._weight = self._weight * KEPT + 1
        self._rows = self._rows * KEPT + rows
        self._busy = self._busy * KEPT + busy
        self._rows_squared = self._rows_squared * KEPT + rows * rows
        self._rows_busy = self._rows_busy * KEPT + rows * busy
        self._largest = max(self._largest * KEPT, rows)

    def rows_within(self, seconds: float) -> int | None:
        """Return how many rows may cost so many seconds beside the fixed cost; None before the first batch.

        Parameters
        ----------
        seconds : float
            The time.

        Returns
        -------
        int or None
            At least 1, and at most twice the largest batch of late.
        """
        if self._weight == 0 or self._busy <= 0:
            return None
        most = max(1, int(self._largest * GROWTH))
        each = self._each()
        return most if each * most <= seconds else max(1, round(seconds / each))

    def _each(self) -> float:
        """Return the seconds that one row more costs; at most the mean of a row, which knows of no fixed cost."""
        mean = self._busy / self._rows
        spread = self._weight * self._rows_squared - self._rows * self._rows
        if spread <= 1e-9 * self._weight * self._rows_squared:
            # Batches of one size say nothing of the fixed cost; once there are several, a larger one has to.
            return mean if self._weight < FEW else 0.0
        slope = (self._weight * self._rows_busy - self._rows * self._busy) / spread
        return min(max(slope, 0.0), mean)
