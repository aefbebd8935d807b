"""Python values that are brought into a declared type without Arrow, whose calls take far longer for one value."""

from __future__ import annotations

import datetime
import decimal
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

UNKNOWN: Any = object()
"""Says that only Arrow can tell whether a value fits, and what it becomes."""

Quick: TypeAlias = Callable[[Any], Any]
"""Returns a value as Arrow would return it, or `UNKNOWN`."""

INTEGERS = {
    kind: (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    for signed, kinds in (
        (True, (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        (False, (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    )
    for kind, bits in zip(kinds, (8, 16, 32, 64), strict=True)
}
"""The least and the greatest value of each type of integers."""

_NUMPY_INTEGERS = frozenset(np.dtype(code).type for code in "bhilqBHILQ")
_EXACT = 1 << 53
"""Integers up to this are exact as floats, and Arrow takes no others for one."""

_LARGEST_SINGLE = 3.4e38
_LONGEST_DAYS = 106_751_990
"""Days of a duration that fits into 64 bits of microseconds."""

_MICROSECONDS = pa.duration("us")


@functools.cache
def quick_fit(kind: pa.DataType) -> Quick:
    """Return what takes the frequent values that are not of the type itself.

    Parameters
    ----------
    kind : DataType
        The declared type.

    Returns
    -------
    callable
        Returns `UNKNOWN` for all other values.

    Examples
    --------
    >>> fit = quick_fit(pa.float64())
    >>> fit(3), fit(np.float32(0.5)), fit("3") is UNKNOWN
    (3.0, 0.5, True)
    """
    if kind in INTEGERS:
        return _integers(*INTEGERS[kind])
    if kind == pa.float64():
        return _double
    if kind == pa.float32():
        return _single
    if kind == pa.bool_():
        return lambda value: bool(value) if type(value) is np.bool_ else UNKNOWN
    if kind == _MICROSECONDS:
        return _duration
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return _zoned(kind)
    if pa.types.is_decimal(kind):
        return _decimals(kind.precision, kind.scale)
    return _unknown


def _unknown(value: Any) -> Any:
    return UNKNOWN


def _integers(least: int, most: int) -> Quick:
    def integer(value: Any) -> Any:
        return int(value) if type(value) in _NUMPY_INTEGERS and least <= int(value) <= most else UNKNOWN

    return integer


def _double(value: Any) -> Any:
    given = type(value)
    if given is np.float64 or given is np.float32:
        return float(value)
    if given is int or given in _NUMPY_INTEGERS:
        return float(value) if -_EXACT <= int(value) <= _EXACT else UNKNOWN
    return UNKNOWN


def _single(value: Any) -> Any:
    given = type(value)
    if given is np.float32:
        return float(value)
    if given is float or given is np.float64:
        return float(np.float32(value)) if abs(value) <= _LARGEST_SINGLE else UNKNOWN
    return UNKNOWN


def _duration(value: Any) -> Any:
    return value if type(value) is datetime.timedelta and abs(value.days) <= _LONGEST_DAYS else UNKNOWN


def _zoned(kind: pa.DataType) -> Quick:
    zone = pa.scalar(0, kind).as_py().tzinfo

    def zoned(value: Any) -> Any:
        if type(value) is not datetime.datetime or value.tzinfo is None:
            return UNKNOWN
        try:
            # By way of UTC: of a local time that does not exist, or exists twice, this leaves what Arrow does.
            return value.astimezone(datetime.UTC).astimezone(zone)
        except OverflowError:
            return UNKNOWN

    return zoned


def _decimals(precision: int, scale: int) -> Quick:
    def number(value: Any) -> Any:
        if type(value) is not decimal.Decimal or not value:
            return UNKNOWN
        _, digits, exponent = value.as_tuple()
        return value if exponent == -scale and len(digits) <= precision else UNKNOWN

    return number
