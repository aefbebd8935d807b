"""The map in front of a join that gives the rows of one side the schema that both sides share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.joins.joining import MOST, RIGHT, Joining
from dask_elastic.topology.schema import check_schema
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.batch import MAX_BATCH_ROWS
from dask_elastic.vocab.errors import SchemaMismatch

_DAY = 86_400 * 10**6
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class SideRows:
    """Gives rows of one side the schema of the join's input; for a window, one row for each instance that a row is in.

    Parameters
    ----------
    name : str
        The join.
    joining : Joining
        Its definition.
    side : int
        `LEFT` or `RIGHT`.
    """

    def __init__(self, name: str, joining: Joining, side: int):
        self.name = name
        self.joining = joining
        self.side = side
        self._nulls = {kind: pa.nulls(0, kind) for kind in joining.shared}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with side and time, and their columns in the shared ones."""
        joining, side = self.joining, self.joining.sides[self.side]
        which = "right" if self.side == RIGHT else "left"
        rows = check_schema(side.schema, batch, f"the {which} side of join {self.name!r}")
        times = microseconds_of(rows.column(side.time), f"join {self.name!r}, {which} side: time {side.time!r}")
        if joining.window is not None:
            chosen, times = instances(times, joining.window)
            rows = rows if chosen is None else rows.take(chosen)
        shared = [self._null(kind, rows.num_rows) for kind in joining.shared]
        for column, place in side.places.items():
            shared[place] = rows.column(column)
        sides = array_of(np.full(rows.num_rows, self.side, np.int8))
        keys = [rows.column(key) for key in side.keys]
        return pa.RecordBatch.from_arrays([*keys, sides, times, *shared], schema=joining.input)

    def _null(self, kind: pa.DataType, count: int) -> pa.Array:
        # Slices of one array: making nulls takes as long as copying a column.
        if len(self._nulls[kind]) < count:
            self._nulls[kind] = pa.nulls(max(count, MAX_BATCH_ROWS), kind)
        return self._nulls[kind].slice(0, count)


def microseconds_of(times: pa.Array, where: str) -> pa.Array:
    """Return times as microseconds since the Unix epoch, rounded down.

    Parameters
    ----------
    times : Array
        Timestamps or dates; without a zone they are in UTC.
    where : str
        The column, for the error text.

    Returns
    -------
    Array
        Of int64, null where a time is.

    Raises
    ------
    SchemaMismatch
        When a time is more than 73,000 years from 1970.

    Examples
    --------
    >>> microseconds_of(pa.array([1_999, None], pa.timestamp("ns")), "time").to_pylist()
    [1, None]
    """
    if pa.types.is_date32(times.type):
        numbers, factor, divisor = times.view(pa.int32()).cast(pa.int64()), _DAY, 1
    else:
        unit = "ms" if pa.types.is_date64(times.type) else times.type.unit
        numbers, factor, divisor = (
            times.view(pa.int64()),
            max(1, 10**6 // _PER_SECOND[unit]),
            _PER_SECOND[unit] // 10**6,
        )
    plain = numpy_of(numbers.fill_null(0))
    # Of nanoseconds, all 64 bits are less.
    most = MOST * max(1, divisor) // factor
    if len(plain) and not -most < plain.min() <= plain.max() < most:
        raise SchemaMismatch(f"{where} has a time more than 73,000 years from 1970; filter such rows out before.")
    micros: npt.NDArray[np.int64] = plain * factor if divisor <= 1 else plain // divisor
    if not numbers.null_count:
        return array_of(micros)
    return array_of(micros, mask=numpy_of(numbers.is_null()))


def instances(times: pa.Array, window: EventWindow) -> tuple[pa.Array | None, pa.Array]:
    """Return the instances of a window that rows are in: the numbers of the rows, and the begin of each instance.

    Parameters
    ----------
    times : Array
        The time of each row in microseconds. A row without one is in one instance, which has no begin.
    window : EventWindow
        The window.

    Returns
    -------
    rows : Array or None
        The row of each instance, in order; None if each row is in one.
    begins : Array
        The begin of each instance in microseconds.

    Examples
    --------
    >>> rows, begins = instances(pa.array([5, 12]), EventWindow(start=0, length=10, frequency=5))
    >>> rows.to_pylist(), begins.to_pylist()
    ([0, 0, 1, 1], [5, 0, 10, 5])
    """
    plain = numpy_of(times.fill_null(0))
    last = plain - (plain - window.start) % window.frequency
    if window.length == window.frequency:
        return None, _masked(last, times)
    most = -(-window.length // window.frequency)
    begins = last[:, None] - window.frequency * np.arange(most)
    inside = begins + window.length > plain[:, None]
    if times.null_count:
        inside[numpy_of(times.is_null())] = np.arange(most) == 0
    rows, _ = np.nonzero(inside)
    chosen = array_of(rows)
    return chosen, _masked(begins[inside], times.take(chosen))


def _masked(values: npt.NDArray[Any], like: pa.Array) -> pa.Array:
    return pa.array(values, mask=numpy_of(like.is_null()) if like.null_count else None)
