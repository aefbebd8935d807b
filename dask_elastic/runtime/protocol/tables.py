"""Arrow tables as bytes on the wire."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

TOTAL = b"dask_elastic.rows"
"""The key of the metadata with the number of rows that a table had before it was cut."""


def table_bytes(table: pa.Table) -> pa.Buffer:
    """Return a table as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def read_table(data: Any) -> pa.Table:
    """Return a table from an Arrow IPC stream."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def first_rows(table: pa.Table, count: int, total: int | None = None) -> pa.Table:
    """Return the first rows of a table, with the number of all of them, or `total`, in its metadata.

    Examples
    --------
    >>> total_rows(first_rows(pa.table({"key": [1, 2, 3]}), 2))
    3
    """
    return table.slice(0, count).replace_schema_metadata({TOTAL: str(table.num_rows if total is None else total)})


def total_rows(table: pa.Table) -> int:
    """Return how many rows a table had before `first_rows` cut it."""
    metadata = table.schema.metadata or {}
    return int(metadata.get(TOTAL, table.num_rows))
