"""Rows as messages of Kafka."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import pyarrow as pa

from dask_elastic.vocab.errors import SinkError


class KafkaMessages:
    """Turns rows into keys and values.

    Parameters
    ----------
    key : str or None
        The column that becomes the key.
    value : str or None
        The column that becomes the value; None for JSON of all columns.
    where : str
        Sink, job and topic, for errors.

    Examples
    --------
    >>> messages = KafkaMessages("plane", None, "sink 'out'")
    >>> rows = pa.record_batch({"plane": ["N1"], "delay": [3]})
    >>> messages.keys(rows), messages.values(rows)
    ([b'N1'], [b'{"plane":"N1","delay":3}'])
    """

    def __init__(self, key: str | None, value: str | None, where: str):
        self._key = key
        self._value = value
        self._where = where

    def keys(self, rows: pa.RecordBatch) -> list[bytes | None]:
        """Return the key of each row."""
        if self._key is None:
            return [None] * rows.num_rows
        return [_as_bytes(key) for key in self._column(rows, self._key).to_pylist()]

    def values(self, rows: pa.RecordBatch) -> list[bytes | None]:
        """Return the value of each row.

        Raises
        ------
        SinkError
            If a column is missing, or a row cannot become JSON.
        """
        if self._value is not None:
            return [_as_bytes(value) for value in self._column(rows, self._value).to_pylist()]
        try:
            return [
                json.dumps(_finite(row), default=_as_json, separators=(",", ":")).encode() for row in rows.to_pylist()
            ]
        except TypeError as error:
            raise SinkError(f"{self._where}: a row cannot become JSON: {error}. Use value= with bytes.") from error

    def _column(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        if name not in rows.schema.names:
            names = ", ".join(rows.schema.names)
            raise SinkError(f"{self._where}: the rows have no column {name!r}; they have {names}.")
        return rows.column(name)


def _as_bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _finite(value: Any) -> Any:
    """Replace floats that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _as_json(value: object) -> object:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"a value has the type {type(value).__name__}")
