"""Rows that a program sends: any table that users give becomes batches, and these become parts of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from dask.utils import format_bytes

from dask_elastic.topology.tables import TABLES_TAKEN, as_table
from dask_elastic.vocab.errors import BatchTooLarge

SEND_ROWS = 65_536
SEND_BYTES = 8 * 2**20
"""A larger batch is sent in parts."""


def batches_of(rows: Any) -> list[pa.RecordBatch]:
    """Return a table that a user gives as batches.

    Raises
    ------
    TypeError
        If `rows` is no table that `as_table` converts.
    ValueError
        If its columns are invalid.

    Examples
    --------
    >>> [batch.num_rows for batch in batches_of({"n": [1, 2]})]
    [2]
    """
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    try:
        table = as_table(rows)
    except ValueError as error:
        raise ValueError(f"send: the {type(rows).__name__} cannot become rows: {error}") from error
    if table is None:
        raise TypeError(f"send takes {TABLES_TAKEN}, not {type(rows).__name__}")
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches if len(batches) <= 1 else list(table.combine_chunks().to_batches())


def parts_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return the parts in which a batch is sent: itself if it is small, none if it is empty."""
    count, nbytes = batch.num_rows, batch.nbytes
    if 0 < count <= SEND_ROWS and nbytes <= SEND_BYTES:
        return [batch]
    parts = max(1, -(-count // SEND_ROWS), -(-nbytes // SEND_BYTES))
    size = max(1, -(-count // parts))
    return [batch.slice(start, size) for start in range(0, count, size)]


def check_sizes(parts: Sequence[pa.RecordBatch], most: int | None, source: str) -> None:
    """Raise unless the worker of a source takes each part.

    Parameters
    ----------
    parts : sequence of RecordBatch
        The parts.
    most : int or None
        The most bytes that the worker takes at once; None for no limit.
    source : str
        The source, for the error.

    Raises
    ------
    BatchTooLarge
        If a part has more bytes.
    """
    for part in parts:
        if most is not None and (nbytes := part.nbytes) > most:
            has = "1 row has" if part.num_rows == 1 else f"{part.num_rows} rows have"
            raise BatchTooLarge(
                f"{source}: {has} {format_bytes(nbytes)}, and the worker takes {format_bytes(most)} at once, the "
                "smaller of elastic.max-frame and a quarter of its memory. Nothing was sent: send smaller rows, or "
                "give workers more memory"
            )
