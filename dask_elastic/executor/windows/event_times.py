"""Times of rows as microseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.expiry_time import check_time_type
from dask_elastic.topology.window_time import window_time_type
from dask_elastic.topology.windowing import MOST
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.errors import SchemaMismatch
from dask_elastic.vocab.state_record import BEGINNING

Times: TypeAlias = npt.NDArray[np.int64]
"""Microseconds since the Unix epoch."""

_DAY = 86_400_000_000
_PER_UNIT = {"s": 1_000_000, "ms": 1_000}


def microseconds(column: pa.Array, name: str) -> Times:
    """Return timestamps or dates as microseconds since the Unix epoch; nulls are 0.

    Parameters
    ----------
    column : Array
        The times.
    name : str
        The name of the column, for the error.

    Returns
    -------
    ndarray of int64
        Finer units are rounded down, as watermarks are.

    Raises
    ------
    SchemaMismatch
        If they are neither timestamps nor dates.
    ValueError
        If a time is too large.

    Examples
    --------
    >>> microseconds(pa.array([1, None], pa.timestamp("ms")), "at").tolist()
    [1000, 0]
    >>> microseconds(pa.array([-1], pa.timestamp("ns")), "at").tolist()
    [-1]
    """
    kind = column.type
    window_time_type(kind, name)
    numbers = column.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    if numbers.null_count:
        numbers = pc.coalesce(numbers, array_of(np.zeros(1, np.int32))[0])
    found: Times = numpy_of(numbers)
    if pa.types.is_date32(kind):
        found = found.astype(np.int64) * _DAY
    elif pa.types.is_date(kind) or kind.unit != "us":
        unit = "ms" if pa.types.is_date(kind) else kind.unit
        found = found // 1_000 if unit == "ns" else _scaled(found, _PER_UNIT[unit], name)
    return found


def window_times(column: pa.Array, name: str) -> Times:
    """Return the times of rows in windows over event time; see `microseconds`.

    Parameters
    ----------
    column : Array
        The times.
    name : str
        The name of the column, for the error.

    Returns
    -------
    ndarray of int64
        Sums and differences of these, and of lengths and gaps of windows, are numbers of 64 bits.

    Raises
    ------
    SchemaMismatch
        If they are neither timestamps nor dates.
    ValueError
        If a time is 2**62 microseconds or more from 1970, such as the infinity of a database.

    Examples
    --------
    >>> window_times(pa.array([2**62], pa.timestamp("us")), "at")
    Traceback (most recent call last):
        ...
    ValueError: the time 'at' is 4611686018427387904 us since 1970, which is beyond 2**62
    """
    times = microseconds(column, name)
    if len(times) and not -MOST < times.min() <= times.max() < MOST:
        row = int(((times <= -MOST) | (times >= MOST)).argmax())
        error = ValueError(f"the time {name!r} is {times[row]} us since 1970, which is beyond 2**62")
        error.row = row  # type: ignore[attr-defined]
        raise error
    return times


@contextmanager
def rows_numbered(valid: npt.NDArray[np.bool_] | None) -> Iterator[None]:
    """Give errors the number of the row in the batch, if rows without a time were left out of it before.

    Parameters
    ----------
    valid : ndarray of bool or None
        Which rows of the batch are left; None for all.
    """
    try:
        yield
    except ValueError as error:
        row = getattr(error, "row", None)
        if valid is not None and row is not None:
            error.row = int(np.flatnonzero(valid)[row])  # type: ignore[attr-defined]
        raise


def bounds_of_spans(begins: Times, ends: Times, overlapping: bool) -> tuple[Times, Times]:
    """Return the bounds that an instance has to contain so that it takes a span.

    Parameters
    ----------
    begins, ends : ndarray of int64
        The spans. One that ends before it begins is no span, so that its bounds are further apart than any instance.
    overlapping : bool
        Whether an instance needs to overlap a span only; else it has to contain all of it.

    Returns
    -------
    begins, ends : ndarray of int64
        The last microsecond at which an instance can begin, and the first one at which it can end.

    Examples
    --------
    >>> [bounds.tolist() for bounds in bounds_of_spans(np.array([3, 8]), np.array([20, 8]), overlapping=True)]
    [[19, 8], [4, 9]]
    >>> first, last = bounds_of_spans(np.array([3, 8]), np.array([20, 7]), overlapping=False)
    >>> first.tolist() == [3, -MOST], last.tolist() == [20, MOST]
    (True, True)
    """
    bounds = (np.maximum(ends - 1, begins), begins + 1) if overlapping else (begins, ends)
    if (turned := ends < begins).any():
        return np.where(turned, -MOST, bounds[0]), np.where(turned, MOST, bounds[1])
    return bounds


def _scaled(times: Times, factor: int, name: str) -> Times:
    most = (2**63 - 1) // factor
    beyond = (times > most) | (times < -most)
    if beyond.any():
        row = int(beyond.argmax())
        error = ValueError(f"the time {name!r} is {times[row]} times {factor} us since 1970, which is beyond 2**63")
        error.row = row  # type: ignore[attr-defined]
        raise error
    return times * factor


def row_times(rows: pa.RecordBatch, column: str, where: str) -> Times:
    """Return the event time of each row, by which state that it writes expires.

    Parameters
    ----------
    rows : RecordBatch
        The rows.
    column : str
        The column with their times.
    where : str
        The operator, for the error text.

    Returns
    -------
    ndarray of int64
        Microseconds since the Unix epoch, `BEGINNING` for rows without a time.

    Raises
    ------
    SchemaMismatch
        When there is no such column, or it has no times.

    Examples
    --------
    >>> rows = pa.record_batch({"at": pa.array([1, None], pa.timestamp("ms"))})
    >>> row_times(rows, "at", "compute 'planes'").tolist() == [1000, BEGINNING]
    True
    """
    if rows.schema.names.count(column) != 1:
        raise SchemaMismatch(
            f"{where}: state expires by the column {column!r}, which its input lacks; the columns are "
            f"{rows.schema.names}. Keep it in the maps before, or name another one with time=."
        )
    times = rows.column(column)
    check_time_type(times.type, column, where)
    if times.null_count == len(times):
        return np.full(len(times), BEGINNING)
    found = microseconds(times, column)
    return np.where(times.is_null(), BEGINNING, found) if times.null_count else found


def timestamps(times: Times, kind: pa.DataType) -> pa.Array:
    """Return microseconds since the Unix epoch as an array of timestamps.

    Parameters
    ----------
    times : ndarray of int64
        The times.
    kind : DataType
        A type that `window_time_type` returned.

    Returns
    -------
    Array
        The timestamps.

    Examples
    --------
    >>> timestamps(np.array([1]), pa.timestamp("ns")).cast(pa.int64()).to_pylist()
    [1000]
    """
    return array_of(times).view(pa.timestamp("us")).cast(pa.timestamp(kind.unit)).cast(kind)
