"""Exact integer sums by group, which raise instead of overflowing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.vocab.batch import FEW_ROWS
from dask_elastic.vocab.errors import NumericOverflow

Integers = npt.NDArray[np.int64]

_HALF = 32
_LOW = (1 << _HALF) - 1
_LIMIT = 1 << 63
_MANY = 1 << 22
_SMALL = np.int64(1 << 40)
_GREAT = np.int64(1 << 62)


def add_integers(current: Integers, values: npt.NDArray[Any], grouping: Grouping, owner: str) -> Integers:
    """Add the integer of each row to the sum of its group.

    Parameters
    ----------
    current : ndarray of int64
        The current sums, one per group.
    values : ndarray
        One integer or boolean per row.
    grouping : Grouping
        The groups of the rows.
    owner : str
        The aggregate's repr, for the error text.

    Returns
    -------
    ndarray of int64
        The new sums.

    Raises
    ------
    NumericOverflow
        If a new sum does not fit int64; intermediate sums may exceed the range.

    Examples
    --------
    >>> add_integers(np.array([1, 2]), np.array([10, 20, 30]), Grouping(np.array([0, 1, 0]), 2), "Sum('n')").tolist()
    [41, 22]
    """
    if len(values) == 0:
        return current
    if max(len(values), len(current)) <= FEW_ROWS:
        return _add_few(current, values, grouping, owner)
    if grouping.single and values.dtype != np.uint64:
        return merge_integers(current, values, owner)
    if _is_harmless(current, values) or _magnitude(values) * len(values) + _magnitude(current) < _LIMIT:
        sums = current.copy()
        np.add.at(sums, grouping.ordinals, values.astype(np.int64, copy=False))
        return sums
    return _add_halves(current, values, grouping, owner)


def _add_few(current: Integers, values: npt.NDArray[Any], grouping: Grouping, owner: str) -> Integers:
    """Add with Python's integers, which never overflow and for a few rows are faster than NumPy's."""
    sums = current.tolist()
    for group, value in zip(grouping.ordinals.tolist(), values.tolist(), strict=True):
        sums[group] += value
    try:
        return np.array(sums, np.int64)
    except OverflowError as error:
        raise _overflow(owner) from error


def merge_integers(left: Integers, right: npt.NDArray[Any], owner: str) -> Integers:
    """Add two arrays of sums.

    Parameters
    ----------
    left : ndarray of int64
        The sums.
    right : ndarray
        More sums, or values of a type whose sum with int64 is int64.
    owner : str
        The aggregate's repr, for the error text.

    Returns
    -------
    ndarray of int64
        The elementwise sums.

    Raises
    ------
    NumericOverflow
        If a sum does not fit int64.
    """
    sums: Integers = left + right
    # A sum has wrapped if its sign differs from that of both operands.
    wrapped = ((left ^ sums) & (right ^ sums)) < 0
    if wrapped.any():
        raise _overflow(owner)
    return sums


def _is_harmless(current: Integers, values: npt.NDArray[Any]) -> bool:
    """Return whether values and sums are too small for overflow; cheap, and true for most data."""
    if len(values) > _MANY or values.dtype == np.uint64:
        return False
    return _within(current, _GREAT) and (values.dtype.itemsize < 8 or _within(values, _SMALL))


def _within(values: Integers, bound: np.int64) -> bool:
    # After the shift, values on either side of the range are large unsigned integers: one maximum suffices.
    shifted = (values + bound).view(np.uint64)
    return bool(np.maximum.reduce(shifted, initial=0) < 2 * int(bound))


def _magnitude(values: npt.NDArray[Any]) -> int:
    """Return a bound of the absolute values; for narrow types that of the type, without reading the values."""
    if values.dtype.itemsize < 8:
        return 1 << (8 * values.dtype.itemsize)
    if len(values) == 0:
        return 0
    return max(int(values.max()), -int(values.min()))


def _add_halves(current: Integers, values: npt.NDArray[Any], grouping: Grouping, owner: str) -> Integers:
    # The upper and lower 32 bits are summed separately, so that neither overflows for fewer than 2**31 rows.
    wide = values if values.dtype == np.uint64 else values.astype(np.int64, copy=False)
    high, low = current >> _HALF, current & _LOW
    np.add.at(high, grouping.ordinals, (wide >> _HALF).astype(np.int64))
    np.add.at(low, grouping.ordinals, (wide & _LOW).astype(np.int64))
    high += low >> _HALF
    if (high >> (_HALF - 1) != high >> _HALF).any():
        raise _overflow(owner)
    return (high << _HALF) | (low & _LOW)


def _overflow(owner: str) -> NumericOverflow:
    return NumericOverflow(
        f"{owner}: a sum exceeds the range of the 64-bit integers that hold sums of integers, decimals and durations. "
        "Sum floats instead, as in Sum(lambda batch: pc.cast(batch[column], pa.float64()), columns=[column])"
    )
