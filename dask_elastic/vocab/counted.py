"""Numbers with what they count, in the singular or plural."""

from __future__ import annotations


def counted(value: int, noun: str) -> str:
    """Format a number and what it counts.

    Parameters
    ----------
    value : int
        The number.
    noun : str
        What it counts, in the singular; the plural has an s.

    Returns
    -------
    str
        With separators of thousands.

    Examples
    --------
    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{value:,} {noun}{'' if value == 1 else 's'}"
