"""Arrow tables as bytes on the wire."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


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
