"""The columns of the results of windows, and their types."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from dask_elastic.topology.window_time import window_time_type
from dask_elastic.topology.windowing import REVISION, WINDOW_END, WINDOW_START, WITHDRAWN, Windowing
from dask_elastic.topology.windows.one_key import ONE_KEY
from dask_elastic.vocab.errors import TopologyError


def bound_columns(windowing: Windowing, types: Mapping[str, pa.DataType], operator: str) -> dict[str, pa.DataType]:
    """Return the columns that results of windows have beside the keys and the aggregates.

    Parameters
    ----------
    windowing : Windowing
        The windows.
    types : mapping of str to DataType
        The types of the columns of event time, by name.
    operator : str
        The operator, for the error text.

    Returns
    -------
    dict of str to DataType
        ``window_start`` and ``window_end``: timestamps in the zone of the times, in nanoseconds if these are, else in
        microseconds; for count windows without times, numbers of rows. And perhaps ``revision`` and ``withdrawn``.

    Raises
    ------
    TopologyError
        When a column has neither timestamps nor dates.

    Examples
    --------
    >>> from dask_elastic.topology.windows.definitions import tumbling
    >>> windowing = Windowing((tumbling("1h"),), ("at",), allowed_lateness=1)
    >>> bound_columns(windowing, {"at": pa.timestamp("s", "UTC")}, "hourly")
    {'window_start': TimestampType(timestamp[us, tz=UTC]), 'window_end': ..., 'revision': DataType(int64)}
    """
    for column in windowing.time:
        kind = types[column]
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind)):
            raise TopologyError(
                f"compute {operator!r}: column {column!r}, the time of its windows, has type {kind}; cast it to a "
                "timestamp in a map before, or name another column with time='column'."
            )
    bound = pa.int64()
    if windowing.time:
        column = windowing.time[0]
        is_known = not pa.types.is_null(types[column])
        bound = window_time_type(types[column] if is_known else pa.timestamp("us"), column)
    columns = {WINDOW_START: bound, WINDOW_END: bound}
    others = {REVISION: pa.int64(), WITHDRAWN: pa.bool_()}
    return columns | {name: others[name] for name in windowing.output_columns if name in others}


def result_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the key columns that results have: none for windows over all rows.

    Examples
    --------
    >>> result_keys(("plane", "day")), result_keys((ONE_KEY,))
    (('plane', 'day'), ())
    """
    return () if keys == (ONE_KEY,) else keys
