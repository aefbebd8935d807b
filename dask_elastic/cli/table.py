"""Formats values as text, and rows of text as a table."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from dask.utils import format_bytes, format_time

MISSING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Format rows as aligned columns below their headings.

    Parameters
    ----------
    head : sequence of str
        The headings.
    rows : iterable of sequences of str
        The cells; each row has as many as there are headings.
    left : int
        Number of columns, from the first, that are aligned to the left; the others are aligned to the right.

    Returns
    -------
    str
        The lines of the table.

    Examples
    --------
    >>> print(table(["job", "rows"], [["word-count", "1,000"], ["b", "7"]]))
    job          rows
    word-count  1,000
    b               7
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def count(value: float | None) -> str:
    """Format a number without its fraction, with thousands separators.

    Examples
    --------
    >>> count(12345.6), count(None)
    ('12,346', '–')
    """
    return MISSING if value is None else f"{value:,.0f}"


def clock(seconds: float) -> str:
    """Format a time, in seconds since 1970, as the local time of day.

    Examples
    --------
    >>> len(clock(0.0))
    8
    """
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def duration(seconds: float | None) -> str:
    """Format a duration in seconds with a suitable unit.

    Examples
    --------
    >>> duration(0.0123), duration(None), duration(float("inf"))
    ('12.30 ms', '–', '∞')
    """
    if seconds is None or math.isnan(seconds):
        return MISSING
    return str(format_time(seconds)) if math.isfinite(seconds) else "∞"


def size(count_of_bytes: float) -> str:
    """Format a number of bytes with a suitable unit.

    Examples
    --------
    >>> size(2048)
    '2.00 kiB'
    """
    return str(format_bytes(int(count_of_bytes)))
