"""Formats numbers, times and sizes as text."""

from __future__ import annotations

import math
import time

from dask.utils import format_bytes, format_time

MISSING = "–"


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
