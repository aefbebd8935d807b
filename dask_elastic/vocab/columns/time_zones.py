"""Times with and without a time zone, which Arrow takes for each other without an error."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import pyarrow as pa


def check_zones(values: Iterable[Any], type_: pa.DataType) -> None:
    """Raise if a time of Python has a zone where a type has none, or none where the type has one.

    Arrow takes a time without a zone for one in UTC. Which instant it is, only its sender knows.

    Parameters
    ----------
    values : iterable
        Objects of Python. Only `datetime` objects are checked, those of pandas included.
    type_ : DataType
        The type of the column; if it is not of timestamps, all values pass.

    Raises
    ------
    ArrowInvalid
        Names the first such time.

    Examples
    --------
    >>> noon = datetime.datetime(2024, 6, 1, 12)
    >>> check_zones([noon, None], pa.timestamp("us"))
    >>> check_zones([noon], pa.timestamp("s", "UTC"))
    Traceback (most recent call last):
        ...
    pyarrow.lib.ArrowInvalid: 2024-06-01 12:00:00 is a time without a zone, and timestamp[s, tz=UTC] is for ...
    """
    if not pa.types.is_timestamp(type_):
        return
    for value in values:
        # No time of pandas, NaT, differs from itself.
        if isinstance(value, datetime.datetime) and value == value and (value.tzinfo is None) != (type_.tz is None):
            raise zone_error(str(value), value.tzinfo is None, type_)


def zone_error(what: str, is_local: bool, type_: pa.DataType) -> pa.ArrowInvalid:
    """Return the error for a time, or times, without a zone if `is_local`, where a type is for others."""
    has, takes = ("without a zone", "with one") if is_local else ("with a zone", "without one")
    return pa.ArrowInvalid(f"{what} is a time {has}, and {type_} is for times {takes}")
