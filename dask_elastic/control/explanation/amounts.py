"""Formats bytes, numbers of cores and lists for the sentences of explanations."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.control.reason import duration
from dask_elastic.vocab.counted import counted

_UNITS = ("bytes", "kiB", "MiB", "GiB", "TiB")


def size(nbytes: float) -> str:
    """Return a number of bytes as text with a unit.

    Examples
    --------
    >>> size(512), size(3 * 2**20)
    ('512 bytes', '3.0 MiB')
    """
    amount, unit = float(nbytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{amount:.0f} {_UNITS[0]}"


def cores(count: int) -> str:
    """Return a number of cores as text.

    Examples
    --------
    >>> cores(1), cores(3)
    ('1 core', '3 cores')
    """
    return counted(count, "core")


def latency(seconds: float | None) -> str:
    """Return a latency as text; one that is infinite means that queues grow.

    Examples
    --------
    >>> latency(0.05), latency(float("inf")), latency(None)
    ('50 ms', 'unlimited (queues grow)', 'unknown')
    """
    if seconds is None:
        return "unknown"
    return "unlimited (queues grow)" if seconds == float("inf") else duration(seconds)


def joined(names: Iterable[str]) -> str:
    """Return names as an enumeration.

    Examples
    --------
    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
