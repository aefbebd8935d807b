"""Numbers as text, with what they count."""

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


def three_digits(value: float) -> str:
    """Format a number with three significant digits, or with all digits before the point where it has more.

    Parameters
    ----------
    value : float
        The number.

    Returns
    -------
    str
        With separators of thousands, and never with a power of ten where it is large.

    Examples
    --------
    >>> three_digits(0.0106), three_digits(213.4), three_digits(2060.7), three_digits(2.06e9)
    ('0.0106', '213', '2,061', '2,060,000,000')
    """
    # What rounds to a thousand has four digits.
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
