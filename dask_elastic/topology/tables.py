"""Tables as users give them: of Arrow, pandas or Polars, dicts of columns, and all that exports Arrow data."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.topology.schema import plain_column, plain_schema
from dask_elastic.vocab.listed_arrays import table_of_columns

TABLES_TAKEN = (
    "a pyarrow RecordBatch or Table, a dict of columns, a pandas or Polars DataFrame, or another object with Arrow's "
    "PyCapsule interface"
)
"""What `as_table` converts, for error texts."""

ROWS_WANTED = f"return {TABLES_TAKEN}, an iterable of these, or None."

_LONGEST = 40
"""Characters of a value that an error shows."""

_SINGLE = (str, bytes, bytearray, Mapping, Number, datetime.date, np.generic)
"""Values of one row, not of a column."""

EXPORTS = ("__arrow_c_stream__", "__arrow_c_array__")


def is_table(value: object) -> bool:
    """Return whether `as_table` converts a value, if its columns are valid.

    Parameters
    ----------
    value : object
        Any value.

    Returns
    -------
    bool
        False for an Arrow array, for example, although it exports Arrow data: it has no columns.

    Examples
    --------
    >>> is_table({"a": [1, 2]}), is_table([1, 2])
    (True, False)
    """
    if isinstance(value, pa.RecordBatch | pa.Table | Mapping) or _is_pandas_frame(value):
        return True
    return not isinstance(value, pa.Array | pa.ChunkedArray) and any(hasattr(type(value), name) for name in EXPORTS)


def as_table(value: object) -> pa.Table | None:
    """Convert a table that a user gives to Arrow.

    Parameters
    ----------
    value : object
        A RecordBatch or Table, a dict of columns, a pandas DataFrame (levels of its index that have a name become
        columns), or an object with Arrow's PyCapsule interface, such as a Polars DataFrame.

    Returns
    -------
    Table or None
        The rows; None if the value is no table. String views, which Arrow cannot filter, become large strings.

    Raises
    ------
    ValueError
        When the columns are no table, for example because they differ in length, or a dict has a value of one row, such
        as a text, where a column has the values of all rows.

    Examples
    --------
    >>> as_table({"a": [1, 2]}).num_rows
    2
    >>> as_table("a") is None
    True
    """
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if not is_table(value):
        return None
    try:
        if isinstance(value, Mapping):
            _check_columns(value)
            return table_of_columns(value)
        if _is_pandas_frame(value):
            return pa.Table.from_pandas(_with_named_levels(value), preserve_index=False)
        return _imported(value)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def as_batches(returned: object, operator: str) -> list[pa.RecordBatch]:
    """Convert the return value of a user's function to batches, without empty ones.

    Parameters
    ----------
    returned : object
        None, a table that `as_table` converts, or an iterable of tables.
    operator : str
        The operator, for the error text.

    Returns
    -------
    list of RecordBatch
        The rows, in order.

    Raises
    ------
    TypeError
        When it is, or contains, a value of another type.

    Examples
    --------
    >>> as_batches(pa.table({"a": [1, 2]}), "map 'tidy'")[0].num_rows
    2
    >>> as_batches(3, "map 'tidy'")
    Traceback (most recent call last):
        ...
    TypeError: map 'tidy' returned an int; return a pyarrow RecordBatch or Table, a dict of columns, ...
    """
    if isinstance(returned, pa.RecordBatch):
        return _not_empty(returned)
    if returned is None:
        return []
    what = describe_type(returned)
    table = _table(returned, operator, what)
    if table is not None:
        return _not_empty(table)
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes) or is_of_pandas(returned):
        raise TypeError(f"{operator} returned {what}; {ROWS_WANTED}")
    batches: list[pa.RecordBatch] = []
    for position, item in enumerate(returned):
        each = f"{what} whose item {position} is {describe_type(item)}"
        table = _table(item, operator, each)
        if table is None:
            raise TypeError(f"{operator} returned {each}; {ROWS_WANTED}")
        batches.extend(_not_empty(table))
    return batches


def _table(value: object, operator: str, what: str) -> pa.Table | None:
    try:
        return as_table(value)
    except ValueError as error:
        raise TypeError(f"{operator} returned {what} that cannot become rows: {error}; {ROWS_WANTED}") from error


def _not_empty(rows: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return [batch for batch in batches if batch.num_rows]


def is_of_pandas(value: object) -> bool:
    """Return whether a value is an object of pandas."""
    return type(value).__module__.partition(".")[0] == "pandas"


def describe_type(value: object) -> str:
    """Return the type of a value, with its article, for an error text."""
    if value is None:
        return "None"
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, pa.Array):
        return f"a pyarrow array of {value.type}"
    if isinstance(value, np.ndarray):
        return f"a NumPy array of {value.dtype} with shape {value.shape}"
    return "an " + kind if kind[0] in "aeio" else "a " + kind


def _check_columns(columns: Mapping[Any, Any]) -> None:
    """Refuse a row where columns are expected: Arrow would make a row of each character of a text."""
    for name, values in columns.items():
        if values is None or isinstance(values, _SINGLE):
            shown = repr(values)
            shown = shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "..."
            raise ValueError(
                f"its column {name!r} is {shown}, a single value; give a list with the value of each row, as in "
                f"{{{name!r}: [...]}}"
            )


def _imported(value: object) -> pa.Table:
    table = pa.table(value)
    schema = plain_schema(table.schema)
    batches = [
        [plain_column(*each) for each in zip(rows.columns, schema.types, strict=True)] for rows in table.to_batches()
    ]
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(columns, schema=schema) for columns in batches], schema)


def _with_named_levels(frame: Any) -> Any:
    """Return a data frame of pandas with the named levels of its index as columns, such as the keys of a groupby."""
    named = [name for name in frame.index.names if name is not None]
    if clashing := [name for name in named if name in frame.columns]:
        raise ValueError(
            f"its index and a column are both named {clashing[0]!r}: call reset_index(drop=True), or rename one of them"
        )
    return frame.reset_index(level=named) if named else frame


def _is_pandas_frame(value: object) -> bool:
    # There is a data frame only after its module was imported, so this need not import it.
    return isinstance(value, getattr(sys.modules.get("pandas"), "DataFrame", ()))
