"""Tables as users give them: of Arrow, pandas or Polars, dicts of columns, and all that exports Arrow data."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pyarrow as pa

from dask_elastic.topology.schema import plain_column, plain_schema

TABLES_TAKEN = (
    "a pyarrow RecordBatch or Table, a dict of columns, a pandas or Polars DataFrame, or another object with Arrow's "
    "PyCapsule interface"
)
"""What `as_table` converts, for error texts."""

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
        A RecordBatch or Table, a dict of columns, a pandas DataFrame (without its index), or an object with Arrow's
        PyCapsule interface, such as a Polars DataFrame.

    Returns
    -------
    Table or None
        The rows; None if the value is no table. String views, which Arrow cannot filter, become large strings.

    Raises
    ------
    ValueError
        When the columns are no table, for example because they differ in length.

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
            return pa.Table.from_pydict(dict(value))
        if _is_pandas_frame(value):
            return pa.Table.from_pandas(value, preserve_index=False)
        return _imported(value)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _imported(value: object) -> pa.Table:
    table = pa.table(value)
    schema = plain_schema(table.schema)
    batches = [
        [plain_column(*each) for each in zip(rows.columns, schema.types, strict=True)] for rows in table.to_batches()
    ]
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(columns, schema=schema) for columns in batches], schema)


def _is_pandas_frame(value: object) -> bool:
    # There is a data frame only after its module was imported, so this need not import it.
    return isinstance(value, getattr(sys.modules.get("pandas"), "DataFrame", ()))
