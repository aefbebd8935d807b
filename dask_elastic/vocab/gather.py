"""Gathering rows in a new order: by NumPy for columns whose values all have one size, else by Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.vocab.arrow_arrays import array_of

Order = npt.NDArray[np.integer[Any]]

MANY_ROWS = 4_096
"""NumPy is faster than Arrow from this many rows on; below, its overhead per call dominates."""

_OFFSETS: dict[int, npt.DTypeLike] = {
    type_.id: offsets
    for types, offsets in (((pa.binary(), pa.string()), np.int32), ((pa.large_binary(), pa.large_string()), np.int64))
    for type_ in types
}


def take_rows(rows: pa.RecordBatch, order: Order) -> pa.RecordBatch:
    """Return the rows with the given numbers, in the given order.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The rows.
    order : numpy.ndarray of int
        Row numbers, from 0; the caller ensures that none is negative.

    Returns
    -------
    pyarrow.RecordBatch
        The rows, of the same schema.

    Raises
    ------
    IndexError
        If a number is not below the number of rows.

    Notes
    -----
    Arrow appends values one by one. NumPy copies values of a fixed size, which is faster for some thousand rows and
    more: numbers, times and decimals, and strings and binaries if all values of the column have the same length.

    Examples
    --------
    >>> rows = pa.record_batch({"number": [1, 2, 3], "plane": ["N10156", "N102UW", "N103US"]})
    >>> take_rows(rows, np.array([2, 0])).to_pydict()
    {'number': [3, 1], 'plane': ['N103US', 'N10156']}
    """
    if len(order) < MANY_ROWS or not rows.num_columns:
        return rows.take(array_of(order))
    return pa.RecordBatch.from_arrays([take_column(column, order) for column in rows.columns], schema=rows.schema)


def take_column(column: pa.Array, order: Order) -> pa.Array:
    """Return the values with the given numbers, in the given order; see `take_rows`.

    Parameters
    ----------
    column : pyarrow.Array
        The values.
    order : numpy.ndarray of int
        Numbers of values, from 0; the caller ensures that none is negative.

    Returns
    -------
    pyarrow.Array
        The values, of the same type.

    Examples
    --------
    >>> take_column(pa.array(["N10156", "N102UW"]), np.array([1, 0])).to_pylist()
    ['N102UW', 'N10156']
    """
    taken = None if len(order) < MANY_ROWS else _take_sized(column, order)
    return column.take(array_of(order)) if taken is None else taken


def _take_sized(column: pa.Array, order: Order) -> pa.Array | None:
    """Return the chosen values of a column, or None if their size is not fixed or one is null."""
    if column.null_count or not len(column):
        return None
    type_ = column.type
    offset_type = _OFFSETS.get(type_.id)
    if offset_type is not None:
        return _take_bytes(column, order, offset_type)
    if not _is_sized(type_):
        return None
    width = type_.bit_width // 8
    taken = _items(column.buffers()[1], width, column.offset * width, len(column)).take(order)
    return pa.Array.from_buffers(type_, len(order), [None, pa.py_buffer(taken)])


def _is_sized(type_: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_decimal(type_) or kinds.is_fixed_size_binary(type_):
        return bool(type_.bit_width)
    return kinds.is_primitive(type_) and not kinds.is_boolean(type_)


def _take_bytes(column: pa.Array, order: Order, offset_type: npt.DTypeLike) -> pa.Array | None:
    """Return the chosen strings or binaries, or None unless all in the column have the same length above 0."""
    _, ends, data = column.buffers()
    offsets = np.frombuffer(ends, offset_type)[column.offset : column.offset + len(column) + 1]
    start, width = int(offsets[0]), int(offsets[1] - offsets[0])
    # The total length is compared first: that check is cheap and excludes most columns of varying lengths.
    if not width or int(offsets[-1]) - start != width * len(column) or (np.diff(offsets) != width).any():
        return None
    if width * len(order) > np.iinfo(offset_type).max:
        return None
    taken = _items(data, width, start, len(column)).take(order)
    bounds = np.arange(0, width * len(order) + 1, width, dtype=offset_type)
    return pa.Array.from_buffers(column.type, len(order), [None, pa.py_buffer(bounds), pa.py_buffer(taken)])


def _items(data: pa.Buffer, width: int, start: int, count: int) -> npt.NDArray[np.void]:
    return np.frombuffer(data, dtype=np.dtype((np.void, width)), count=count, offset=start)
