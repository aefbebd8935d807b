"""Parsing of durations: all forms that Dask accepts, and "10 min"."""

from __future__ import annotations

import datetime
import math
import re

from dask_elastic.vocab.errors import TopologyError

_UNITS = {
    "s": 1.0, "second": 1.0, "sec": 1.0,
    "ms": 1e-3, "millisecond": 1e-3,
    "us": 1e-6, "microsecond": 1e-6,
    "ns": 1e-9, "nanosecond": 1e-9,
    "m": 60.0, "minute": 60.0, "min": 60.0,
    "h": 3600.0, "hour": 3600.0,
    "d": 86400.0, "day": 86400.0,
    "w": 604800.0, "week": 604800.0,
}  # fmt: skip
_WRITTEN = re.compile(r"([+-]?)\s*((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)?\s*([a-z]*)")


def seconds_of(duration: object, where: str) -> float:
    """Parse a duration.

    Parameters
    ----------
    duration : str, float or timedelta
        Text such as "10 minutes", "10 min", "1.5h" or "250ms"; or a number of seconds.
    where : str
        What the duration is for, for the error text.

    Returns
    -------
    float
        The duration in seconds, above 0.

    Raises
    ------
    TopologyError
        When it is not a duration, or not above 0.

    Examples
    --------
    >>> seconds_of("10 min", "List: ttl"), seconds_of("1.5 hours", "List: ttl"), seconds_of(0.25, "List: ttl")
    (600.0, 5400.0, 0.25)
    >>> seconds_of("10 parsecs", "List: ttl")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: List: ttl is '10 parsecs', whose unit of time is unknown; ...
    """
    seconds = parse_duration(duration, where)
    if not (math.isfinite(seconds) and seconds > 0):
        raise TopologyError(f"{where} is {duration!r}; give a duration above 0, such as '10 min'.")
    return seconds


def parse_duration(duration: object, where: str) -> float:
    """Parse a duration that may be 0 or negative, or an infinite number, such as a timeout.

    Parameters
    ----------
    duration : str, float or timedelta
        As for `seconds_of`.
    where : str
        What the duration is for, for the error text.

    Returns
    -------
    float
        The duration in seconds.

    Raises
    ------
    TopologyError
        When it is not a duration.

    Examples
    --------
    >>> parse_duration("0s", "timeout"), parse_duration("1e-3 s", "timeout"), parse_duration("-2 min", "timeout")
    (0.0, 0.001, -120.0)
    """
    if isinstance(duration, datetime.timedelta):
        return duration.total_seconds()
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return float(duration)
    if not isinstance(duration, str):
        raise TopologyError(
            f"{where} is {duration!r}, of type {type(duration).__name__}; give a duration such as '10 min', or seconds."
        )
    found = _WRITTEN.fullmatch(duration.strip().lower())
    if found is None or not any(found.groups()[1:]):
        raise TopologyError(
            f"{where} is {duration!r}, which is not a duration; give a number and a unit, such as '10 min'."
        )
    sign, number, unit = found.groups()
    size = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s")) if unit else 1.0
    if size is None:
        known = ", ".join(_UNITS)
        raise TopologyError(f"{where} is {duration!r}, whose unit of time is unknown; known units are {known}.")
    return float(f"{sign}{number or 1}") * size
