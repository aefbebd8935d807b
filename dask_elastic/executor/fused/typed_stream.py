"""The stream of rows to one reader: always the same columns and types, of plain values."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.routing.co_partition import in_group
from dask_elastic.routing.hashing import hash_keys
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.string_hashing import Words
from dask_elastic.topology.component import Exit
from dask_elastic.topology.schema import check_schema, plain_schema, plain_type
from dask_elastic.vocab.column_types import ColumnTypes
from dask_elastic.vocab.row_bytes import RowBytes


class TypedStream:
    """Fits batches to the schema of the first one, and hashes their keys; belongs to one thread.

    Parameters
    ----------
    component : str
        The component that makes the rows.
    exit_ : Exit
        Who reads them, by which keys.

    Attributes
    ----------
    row_bytes : RowBytes
        Measures the rows.
    schema : Schema or None
        The schema; None before the first batch.
    """

    def __init__(self, component: str, exit_: Exit):
        self._component = component
        self._exit = exit_
        self.schema: pa.Schema | None = None
        self._producer = component
        self.row_bytes = RowBytes(pa.schema([]))
        # The schema of the last batch, and what it takes to fit such batches to the stream: mostly they are alike.
        self._last: pa.Schema | None = None
        self._columns: list[int] | None = None
        self._keys: list[int] = []
        self._fits = False

    @property
    def keys(self) -> list[int]:
        """The positions of the key columns in fitted rows."""
        return self._keys

    def hashes(self, rows: pa.RecordBatch, space: KeySpace) -> Words:
        """Return the hash of each row's key, whose group is that of the columns by which rows are routed.

        Parameters
        ----------
        rows : RecordBatch
            Fitted rows.
        space : KeySpace
            The reader's key space.

        Returns
        -------
        ndarray of uint64
            The hashes.
        """
        keys, routed_by = self._exit.keys, self._exit.routed_by
        hashes = hash_keys([rows.column(position) for position in self._keys], keys)
        if routed_by is None or space.groups == 1:
            return hashes
        return in_group(hashes, hash_keys([rows.column(name) for name in routed_by], routed_by), space.groups)

    def fitted(self, rows: pa.RecordBatch, producer: str) -> pa.RecordBatch:
        """Return rows with the columns that are read, in the schema of the stream.

        Parameters
        ----------
        rows : RecordBatch
            The rows.
        producer : str
            The operator that made them.

        Returns
        -------
        RecordBatch
            The rows.

        Raises
        ------
        SchemaMismatch
            When a column is missing, occurs twice, or has another type than before.
        """
        schema = rows.schema
        # Metadata is dropped: pandas writes the row count into it, and a channel keeps every schema that it has sent.
        if self._last is None or not schema.equals(self._last, check_metadata=True):
            self._note(rows, producer)
        if self._columns is not None:
            rows = rows.select(self._columns)
        if self._fits:
            return rows
        assert self.schema is not None
        if producer != self._producer:
            _types(self._producer, self.schema).require_same(_types(producer, rows.schema), self._exit.target)
        stream = f"the stream from {self._component!r} to {self._exit.target!r}"
        return check_schema(
            self.schema, rows, stream if producer == self._component else f"the rows of {producer!r} in {stream}"
        )

    def _note(self, rows: pa.RecordBatch, producer: str) -> None:
        schema, selected = rows.schema, self._exit.select(rows)
        if self.schema is None:
            # Plain values only: every slice of a dictionary column would be sent with the whole dictionary.
            self.schema, self._producer = plain_schema(selected.schema), producer
            self.row_bytes = RowBytes(self.schema)
            self._keys = [self.schema.get_field_index(key) for key in self._exit.keys]
        self._fits = selected.schema.equals(self.schema, check_metadata=True)
        self._columns = None if selected is rows else [schema.get_field_index(name) for name in selected.schema.names]
        self._last = schema


def _types(producer: str, schema: pa.Schema) -> ColumnTypes:
    return ColumnTypes(producer, {field.name: str(plain_type(field.type)) for field in schema})
