"""What became of the rows of an operator with windows, or of a join."""

from __future__ import annotations

from typing import NamedTuple


class RowCounts(NamedTuple):
    """Pairs of a row and an instance of a window that contains it, and rows that are in none; for a join, rows.

    Parameters
    ----------
    on_time : int
        Pairs whose instance was open.
    corrected : int
        Pairs whose instance was closed, but within its allowed lateness.
    late : int
        Pairs whose instance takes no rows any more.
    outside : int
        Rows that no instance contains.
    untimed : int
        Rows without a time.

    Examples
    --------
    >>> RowCounts(on_time=3).plus(RowCounts(on_time=1, late=2))
    RowCounts(on_time=4, corrected=0, late=2, outside=0, untimed=0)
    """

    on_time: int = 0
    corrected: int = 0
    late: int = 0
    outside: int = 0
    untimed: int = 0

    def plus(self, other: tuple[int, ...]) -> RowCounts:
        """Return the sums; `other` has the same fields, or none.

        Parameters
        ----------
        other : tuple of int
            Other counts.

        Returns
        -------
        RowCounts
            The sums.
        """
        return RowCounts(*(one + two for one, two in zip(self, other, strict=True))) if other else self
