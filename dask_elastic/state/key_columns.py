"""The key columns of all slots, in the order of the slots."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dask_elastic.state.index import Slots
from dask_elastic.vocab.errors import SchemaMismatch

_CHUNKS = 128


class KeyColumns:
    """Keys as users wrote them; appended to as slots are given out.

    Parameters
    ----------
    schema : Schema
        The key columns' names and types; dictionary-encoded ones are kept decoded.

    Examples
    --------
    >>> import numpy as np
    >>> keys = KeyColumns(pa.schema({"plane": pa.string()}))
    >>> keys.append(pa.record_batch({"plane": ["a", "b"]}))
    >>> keys.take(np.array([1, 0]))["plane"].to_pylist()
    ['b', 'a']
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema: pa.Schema = plain(schema)
        self._chunks: list[pa.RecordBatch] = []

    def fit(self, rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the key columns of rows in the declared types."""
        missing = [name for name in columns if name not in rows.schema.names]
        if missing or list(columns) != self.schema.names:
            raise SchemaMismatch(
                f"keys have the columns {self.schema.names!r}, {list(columns)!r} were asked for, "
                f"and the batch has {rows.schema.names!r}"
            )
        return pa.RecordBatch.from_arrays(
            [_cast(rows.column(field.name), field) for field in self.schema], schema=self.schema
        )

    def append(self, keys: pa.RecordBatch) -> None:
        """Add the keys of the next slots; they have the declared schema."""
        self._chunks.append(keys)
        if len(self._chunks) >= _CHUNKS:
            self._join_tail()

    def _join_tail(self) -> None:
        # Joining only chunks that are not much larger than what follows keeps the copying at n log n.
        first, rows = len(self._chunks) - 1, self._chunks[-1].num_rows
        while first > 0 and self._chunks[first - 1].num_rows <= 2 * rows:
            first -= 1
            rows += self._chunks[first].num_rows
        self._chunks[first:] = [pa.concat_batches(self._chunks[first:])]

    def take(self, slots: Slots) -> pa.RecordBatch:
        """Return the keys of slots."""
        if len(self._chunks) > 1:
            self._chunks = [pa.concat_batches(self._chunks)]
        if not self._chunks:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        return self._chunks[0].take(pa.array(slots))

    @property
    def nbytes(self) -> int:
        """The memory they take."""
        return sum(chunk.nbytes for chunk in self._chunks)


def plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema of names and types alone, dictionary types replaced by those of their values."""
    fields = []
    for field in schema:
        encoded = pa.types.is_dictionary(field.type)
        fields.append(pa.field(field.name, field.type.value_type if encoded else field.type))
    return pa.schema(fields)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"the key column {field.name!r} is {column.type} where {field.type} was declared: {error}"
        ) from error
