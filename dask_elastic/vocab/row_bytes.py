"""Sizes of batches of one schema, and the memory that columns keep alive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_OFFSETS: dict[int, np.dtype[Any]] = {
    kind.id: np.dtype(offsets)
    for kinds, offsets in (((pa.string(), pa.binary()), np.int32), ((pa.large_string(), pa.large_binary()), np.int64))
    for kind in kinds
}

LIGHT_BYTES = 4_096


def is_light(column: pa.Array) -> bool:
    """Return whether a column keeps little memory alive, so that outputs may hold the column instead of a copy.

    Parameters
    ----------
    column : Array
        A column, perhaps a slice of a longer one.

    Returns
    -------
    bool
        False if its buffers are large, or parts of a larger memory, such as a message with all columns of a batch.

    Examples
    --------
    >>> is_light(pa.array([1, 2])), is_light(pa.array(range(1_000)).slice(0, 2))
    (True, False)
    """
    if column.get_total_buffer_size() > LIGHT_BYTES:
        return False
    return all(buffer is None or buffer.parent is None for buffer in column.buffers())


class RowBytes:
    """The size of batches of one schema, as their `nbytes`, but without the bitmaps that mark nulls.

    Parameters
    ----------
    schema : Schema
        The schema of all batches.

    Notes
    -----
    For a batch of a few rows, Arrow's `nbytes` takes as long as hashing them: microseconds per column. The types of the
    columns tell most of the answer in advance.

    Examples
    --------
    >>> rows = pa.record_batch({"plane": ["N10156", "N102UW"], "delay": [3, 5]})
    >>> RowBytes(rows.schema).of(rows), rows.nbytes
    (36, 36)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._bits = 0
        self._texts: list[tuple[int, np.dtype[Any]]] = []
        self._known = True
        for position, kind in enumerate(schema.types):
            if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
                self._bits += kind.bit_width
            elif kind.id in _OFFSETS:
                self._texts.append((position, _OFFSETS[kind.id]))
            elif not pa.types.is_null(kind):
                self._known = False

    def of(self, rows: pa.RecordBatch) -> int:
        """Return the bytes of a batch of this schema."""
        if not self._known:
            return int(rows.nbytes)
        count = rows.num_rows
        total: int = (count * self._bits + 7) // 8
        for position, dtype in self._texts:
            column = rows.column(position)
            offsets = np.frombuffer(column.buffers()[1], dtype)
            start = column.offset
            total += count * dtype.itemsize + offsets.item(start + count) - offsets.item(start)
        return total
