"""Formats durations, sizes and rates as text, and in JavaScript for axes."""

from __future__ import annotations

import math

UNKNOWN = "–"
"""The text for a missing number."""

_WRITE = """
    if (!isFinite(tick)) return "–";
    for (const [size, name] of units)
        if (Math.abs(tick) >= size * 0.9995) return `${+(tick / size).toPrecision(3)} ${name}`.trim();
    return tick == 0 ? "0" : tick.toPrecision(1);
"""

DURATION_TICKS = 'const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];' + _WRITE
COUNT_TICKS = 'const units = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];' + _WRITE
SIZE_TICKS = 'const units = [[2**40, "TiB"], [2**30, "GiB"], [2**20, "MiB"], [2**10, "KiB"], [1, "B"]];' + _WRITE
"""JavaScript that formats `tick`."""


def duration(seconds: float | None) -> str:
    """Format a duration with three digits.

    Examples
    --------
    >>> duration(0.0234), duration(12.5), duration(0.00008), duration(None), duration(math.inf)
    ('23.4 ms', '12.5 s', '80 µs', '–', '∞')
    """
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    if math.isinf(seconds):
        return "∞"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= size * 0.9995:
            return f"{_digits(seconds / size)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds:.0e} s"


def count(number: float | None) -> str:
    """Format a number; from ten thousand on with three digits.

    Examples
    --------
    >>> count(950), count(9876), count(12_345), count(3.2e6), count(None)
    ('950', '9,876', '12.3 k', '3.2 M', '–')
    """
    if number is None or not math.isfinite(number):
        return UNKNOWN
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(number) >= least * 0.9995:
            return f"{_digits(number / unit)} {name}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else _digits(number)


def rate(per_second: float | None) -> str:
    """Format a number of tuples per second.

    Examples
    --------
    >>> rate(12_345.0)
    '12.3 k/s'
    """
    return UNKNOWN if per_second is None or not math.isfinite(per_second) else f"{count(per_second)}/s"


def size(number: float | None) -> str:
    """Format a number of bytes.

    Examples
    --------
    >>> size(512), size(12_900_000), size(3 * 2**30)
    ('512 B', '12.3 MiB', '3 GiB')
    """
    if number is None or not math.isfinite(number):
        return UNKNOWN
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(number) >= unit * 0.9995:
            return f"{_digits(number / unit)} {name}"
    return f"{number:.0f} B"


def plural(number: int, noun: str) -> str:
    """Format a number with a noun in the singular or plural.

    Examples
    --------
    >>> plural(1, "core"), plural(3, "core"), plural(2, "latency/latencies")
    ('1 core', '3 cores', '2 latencies')
    """
    one, _, many = noun.partition("/")
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _digits(value: float) -> str:
    """Format with three digits, without trailing zeros."""
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
