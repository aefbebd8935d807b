"""Turns Kafka's messages into rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dask_elastic.vocab.arrow_arrays import no_rows
from dask_elastic.vocab.errors import SourceError

METADATA = pa.schema(
    {
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", "UTC"),
    }
)
"""The columns that a message has beside its value."""


class MessageRows:
    """Makes the columns that a source offers from messages.

    Parameters
    ----------
    schema : Schema or None
        The fields of the JSON object that each value contains; None for a column `value` of bytes.
    metadata : tuple of str
        Names of columns of `METADATA`.
    where : str
        Names the source in errors.
    """

    def __init__(self, schema: pa.Schema | None, metadata: tuple[str, ...], where: str):
        self._json = schema
        self._where = where
        fields = list(pa.schema({"value": pa.binary()}) if schema is None else schema)
        self.schema = pa.schema([*fields, *(METADATA.field(name) for name in metadata)])

    def rows(self, messages: Sequence[Any], names: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of messages.

        Raises
        ------
        SourceError
            When a value does not contain a JSON object that fits the schema; names its partition and offset.
        """
        schema = pa.schema([self.schema.field(name) for name in names])
        parsed = None
        columns: list[pa.Array] = []
        for field in schema:
            if self._json is not None and field.name in self._json.names:
                if parsed is None:
                    wanted = [each for each in schema if each.name in self._json.names]
                    parsed = self._parsed(messages, pa.schema(wanted))
                columns.append(parsed.column(field.name))
            else:
                columns.append(_column(field, messages))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _parsed(self, messages: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        lines = [self._line(message) for message in messages]
        try:
            return _read(lines, schema)
        except pa.ArrowException as error:
            for message, line in zip(messages, lines, strict=True):
                try:
                    _read([line], schema)
                except pa.ArrowException as cause:
                    raise self._invalid(message, cause) from error
            raise SourceError(f"{self._where}: values cannot be parsed together: {error}") from error

    def _line(self, message: Any) -> bytes:
        """Return the value as a line, after a check that it is one JSON object.

        Arrow's parser crashes the process on some input that is no object, such as `null`.
        """
        value = message.value()
        if value is None:
            return b"{}"
        try:
            is_object = isinstance(json.loads(value.decode()), dict)
        except (ValueError, RecursionError) as error:
            raise self._invalid(message, error) from error
        if not is_object:
            raise self._invalid(message, ValueError("it is no object"))
        line: bytes = value.replace(b"\n", b" ").replace(b"\r", b" ")
        return line

    def _invalid(self, message: Any, cause: Exception) -> SourceError:
        return SourceError(
            f"{self._where}: the value at offset {message.offset()} of partition {message.partition()} of "
            f"{message.topic()!r} is not a JSON object of the schema: {cause}. Skip it with another start, or read the "
            "values as bytes, without schema=."
        )


def _read(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    from pyarrow import json as arrow_json

    if not lines:
        return no_rows(schema)
    data = b"\n".join(lines)
    table = arrow_json.read_json(
        pa.BufferReader(data),
        # One block, and no threads: the worker's cores are reserved for tasks.
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid(f"{len(lines)} values are {table.num_rows} rows")
    return table.select(schema.names).combine_chunks().to_batches()[0]


def _column(field: pa.Field, messages: Sequence[Any]) -> pa.Array:
    match field.name:
        case "value":
            values = [message.value() for message in messages]
        case "key":
            values = [message.key() for message in messages]
        case "topic":
            values = [message.topic() for message in messages]
        case "partition":
            values = [message.partition() for message in messages]
        case "offset":
            values = [message.offset() for message in messages]
        case _:
            # A message without a timestamp has type 0.
            stamps = [message.timestamp() for message in messages]
            values = [milliseconds if kind else None for kind, milliseconds in stamps]
            return pa.array(values, pa.int64()).cast(field.type)
    return pa.array(values, field.type)
