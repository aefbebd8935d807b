"""Values of Arrow as functions per row and per key get them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def python_columns(rows: pa.RecordBatch) -> list[list[Any]]:
    """Return the values of each column as objects of Python.

    Parameters
    ----------
    rows : RecordBatch
        Some rows.

    Returns
    -------
    list of list
        The values of each column, in the order of the columns; null is None.

    Raises
    ------
    ValueError
        If Python has no object for a value, such as a date after the year 9999; names the column.

    Examples
    --------
    >>> python_columns(pa.record_batch({"plane": ["a", "b"], "delay": [3, None]}))
    [['a', 'b'], [3, None]]
    """
    return [_values(column, name) for name, column in zip(rows.schema.names, rows.columns, strict=True)]


def _values(column: pa.Array, name: str) -> list[Any]:
    try:
        if column.type == pa.time64("ns"):
            # Python's times have microseconds; from an array, Arrow refuses to drop more.
            column = column.cast(pa.time64("us"))
        values: list[Any] = column.to_pylist()
    # Arrow raises the former for durations and times, the latter for dates.
    except (OverflowError, ValueError) as error:
        raise ValueError(
            f"column {name!r}: Python has no object for one of its values of type {column.type} ({error}). Filter such "
            "rows or cast the column in an upstream map, or use a function of batches"
        ) from error
    return values
