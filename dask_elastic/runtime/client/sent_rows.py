"""Rows that a program sends: any table that users give becomes batches, and these become parts of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from dask.utils import format_bytes

from dask_elastic.topology.casting import cast_rows
from dask_elastic.topology.tables import TABLES_TAKEN, as_table
from dask_elastic.vocab.errors import BatchTooLarge
from dask_elastic.vocab.row_bytes import RowBytes

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


class SentForm:
    """The form in which rows are sent to one source: with its schema, in parts that its worker takes at once.

    Parameters
    ----------
    schema : Schema or None
        The schema that the source declares; None before it is known.
    most : int or None
        The most bytes that the worker takes at once; None for no limit.

    Examples
    --------
    >>> form = SentForm(pa.schema({"n": pa.int64()}))
    >>> [part.num_rows for part in form.parts([pa.record_batch({"n": [1, 2]})], "source 'rows'")]
    [2]
    """

    def __init__(self, schema: pa.Schema | None = None, most: int | None = None):
        self.schema = schema
        self._most = most
        self._row_bytes = None if schema is None else RowBytes(schema)
        # A batch of up to so many bytes is neither cut nor refused.
        self._least = SEND_BYTES if most is None else min(SEND_BYTES, most)

    @classmethod
    def of(cls, schema: bytes | None, most: int | None) -> SentForm:
        """Return the form for a source whose schema is serialised."""
        return cls(None if schema is None else pa.ipc.read_schema(pa.py_buffer(schema)), most)

    def limited(self, most: int | None) -> SentForm:
        """Return the form for the same schema, and another limit of the worker."""
        return self if most == self._most else SentForm(self.schema, most)

    def cast(self, batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
        """Return a batch in the schema of the source.

        Raises
        ------
        SchemaMismatch
            If it cannot be cast.
        """
        return batch if self.schema is None else cast_rows(self.schema, batch, f"rows sent to {source}")

    def parts(self, batches: Sequence[pa.RecordBatch], source: str) -> list[pa.RecordBatch]:
        """Return the parts in which batches are sent.

        Parameters
        ----------
        batches : sequence of RecordBatch
            The batches. All are cast before they are cut: a cast may make them larger.
        source : str
            The source, for errors.

        Raises
        ------
        SchemaMismatch
            If a batch cannot be cast.
        BatchTooLarge
            If a row has more bytes than the worker takes at once.
        """
        cast = [self.cast(batch, source) for batch in batches]
        if len(cast) == 1 and self._is_small(cast[0]):
            return cast
        parts = [part for batch in cast for part in parts_of(batch)]
        check_sizes(parts, self._most, source)
        return parts

    def _is_small(self, batch: pa.RecordBatch) -> bool:
        """Return whether a batch is sent as it is; found without its `nbytes`, which takes longer than encoding it."""
        count = batch.num_rows
        if self._row_bytes is None or not 0 < count <= SEND_ROWS:
            return False
        bitmaps = batch.num_columns * (count // 8 + 2)
        return bool(self._row_bytes.of(batch) + bitmaps <= self._least)


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
