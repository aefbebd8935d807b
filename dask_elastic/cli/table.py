"""Values as text, and text as a table."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from dask.utils import format_bytes, format_time

MISSING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return rows as aligned columns under their heads.

    Parameters
    ----------
    head : sequence of str
        The heads.
    rows : iterable of sequences of str
        The cells, as many in each row as there are heads.
    left : int
        So many columns, from the first one, are text and stand to the left; the others are numbers.

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
    """Return a number without its fraction, in groups of three digits.

    Examples
    --------
    >>> count(12345.6), count(None)
    ('12,346', '–')
    """
    return MISSING if value is None else f"{value:,.0f}"


def clock(seconds: float) -> str:
    """Return a moment, in seconds since the epoch, as the local time of day.

    Examples
    --------
    >>> len(clock(0.0))
    8
    """
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def duration(seconds: float | None) -> str:
    """Return a time span in a unit that suits it.

    Examples
    --------
    >>> duration(0.0123), duration(None), duration(float("inf"))
    ('12.30 ms', '–', '∞')
    """
    if seconds is None or math.isnan(seconds):
        return MISSING
    return str(format_time(seconds)) if math.isfinite(seconds) else "∞"


def size(count_of_bytes: float) -> str:
    """Return bytes in a unit that suits them.

    Examples
    --------
    >>> size(2048)
    '2.00 kiB'
    """
    return str(format_bytes(int(count_of_bytes)))
