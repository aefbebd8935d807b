"""The columns of times that windows read, and those of their results."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.vocab.errors import SchemaMismatch


def window_time_type(kind: pa.DataType, column: str) -> pa.DataType:
    """Return the type of `window_start` and `window_end` for times of a type.

    Parameters
    ----------
    kind : DataType
        The type of the column of times.
    column : str
        Its name, for the error.

    Returns
    -------
    DataType
        Timestamps in nanoseconds if the input has them, else in microseconds; with the zone of the input.

    Raises
    ------
    SchemaMismatch
        If the column has neither timestamps nor dates.

    Examples
    --------
    >>> window_time_type(pa.timestamp("s", "UTC"), "at"), window_time_type(pa.date32(), "day")
    (TimestampType(timestamp[us, tz=UTC]), TimestampType(timestamp[us]))
    """
    if pa.types.is_date(kind):
        return pa.timestamp("us")
    if not pa.types.is_timestamp(kind):
        raise SchemaMismatch(f"windows are over times, but the column {column!r} is {kind}; cast it to a timestamp")
    return pa.timestamp("ns" if kind.unit == "ns" else "us", kind.tz)
