"""How many rows are copied at once while the tasks of an executor wait."""

from __future__ import annotations

FIRST, LEAST = 512, 32
"""Rows of the first piece, before any is measured, and of the smallest one."""

MOST_GROWTH = 2
"""A piece has at most this many times the rows of the one before: one measurement may be wrong."""


class CopyPieces:
    """Decides on the rows of a piece, so that tasks wait for no longer than a task's turn.

    Parameters
    ----------
    most : int
        Rows of a piece at most, however fast they are copied.
    seconds : float
        Time for which tasks may wait for one piece.

    Attributes
    ----------
    rows : int
        Rows of the next piece, at most.

    Examples
    --------
    >>> pieces = CopyPieces(most=8192, seconds=0.002)
    >>> for _ in range(5):
    ...     pieces.took(pieces.rows, seconds=pieces.rows * 1e-6)
    >>> pieces.rows
    2000
    >>> pieces.took(2000, seconds=0.02)
    >>> pieces.rows
    200
    """

    def __init__(self, most: int, seconds: float = 0.002):
        self.most = most
        self.seconds = seconds
        self.rows = min(FIRST, most)

    def took(self, rows: int, seconds: float) -> None:
        """Note how long a piece took.

        Parameters
        ----------
        rows : int
            Its rows; a piece with fewer rows than planned tells little, and may only make pieces smaller.
        seconds : float
            The time for which tasks could not go on.
        """
        if rows <= 0:
            return
        fits = int(min(rows * self.seconds / seconds, self.most)) if seconds > 0 else self.most
        if fits < self.rows or rows >= self.rows:
            self.rows = max(min(fits, MOST_GROWTH * self.rows, self.most), min(LEAST, self.most))
