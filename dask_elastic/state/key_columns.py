"""The key columns of all slots, in slot order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dask_elastic.state.index import Slots
from dask_elastic.vocab.arrow_arrays import array_of, no_rows
from dask_elastic.vocab.errors import SchemaMismatch

_CHUNKS = 128


class KeyColumns:
    """The users' key values, appended as slots are allocated.

    Parameters
    ----------
    schema : Schema
        The key columns' names and types; dictionary-encoded columns are stored decoded.

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
        """Return the key columns of rows, cast to the declared types; raise SchemaMismatch if they do not fit."""
        missing = [name for name in columns if name not in rows.schema.names]
        if missing or list(columns) != self.schema.names:
            raise SchemaMismatch(
                f"the state is keyed by the columns {self.schema.names!r}; the key columns {list(columns)!r} of a "
                f"batch with the columns {rows.schema.names!r} do not match. Key the stream by the declared columns"
            )
        return pa.RecordBatch.from_arrays(
            [_cast(rows.column(field.name), field) for field in self.schema], schema=self.schema
        )

    def append(self, keys: pa.RecordBatch) -> None:
        """Add the keys of the next slots, in the declared schema."""
        self._chunks.append(keys)
        if len(self._chunks) >= _CHUNKS:
            self._join_tail()

    def _join_tail(self) -> None:
        # Only chunks at most twice as large as all later ones are joined, which limits copying to O(n log n).
        first, rows = len(self._chunks) - 1, self._chunks[-1].num_rows
        while first > 0 and self._chunks[first - 1].num_rows <= 2 * rows:
            first -= 1
            rows += self._chunks[first].num_rows
        self._chunks[first:] = [pa.concat_batches(self._chunks[first:])]

    def take(self, slots: Slots | slice) -> pa.RecordBatch:
        """Return the keys of slots; those of a slice are not copied, since keys never change."""
        if len(self._chunks) > 1:
            self._chunks = [pa.concat_batches(self._chunks)]
        if not self._chunks:
            return no_rows(self.schema)
        if isinstance(slots, slice):
            return self._chunks[0].slice(slots.start, slots.stop - slots.start)
        return self._chunks[0].take(array_of(slots))

    @property
    def nbytes(self) -> int:
        """The memory of the keys, in bytes."""
        return sum(chunk.nbytes for chunk in self._chunks)


def plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata and nullability, dictionary types replaced by their value types."""
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
            f"the key column {field.name!r} is {column.type}, but {field.type} was declared: {error}"
        ) from error
