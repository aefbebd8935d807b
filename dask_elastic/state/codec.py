"""Keyed state as a record batch, and back: for moves between nodes, flushes and checkpoints."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.index import Words
from dask_elastic.topology.field import Field
from dask_elastic.vocab.errors import SchemaMismatch

IDENTITY = ("__hash", "__check", "__shard")
"""The first columns of encoded state."""

_FIELDS = b"dask_elastic.fields"


@dataclass(frozen=True)
class StateRows:
    """State of some keys: identities, shards, key columns and fields, in one order."""

    hashes: Words
    checks: Words
    shards: npt.NDArray[np.int32]
    keys: pa.RecordBatch
    fields: tuple[Field, ...]
    values: Sequence[npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.hashes)


def encode(state: StateRows) -> pa.RecordBatch:
    """Return state as a record batch that says all that is needed to install it.

    Parameters
    ----------
    state : StateRows
        The state.

    Returns
    -------
    RecordBatch
        The columns `IDENTITY`, the key columns, then the fields; the fields' types are in the schema's metadata, and
        Python objects are pickled.
    """
    columns = [pa.array(state.hashes), pa.array(state.checks), pa.array(state.shards), *state.keys.columns]
    columns += [_to_arrow(values) for values in state.values]
    names = [*IDENTITY, *state.keys.schema.names, *(field.name for field in state.fields)]
    schema = pa.schema(
        [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)],
        metadata={_FIELDS: _described(state.fields)},
    )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def decode(batch: pa.RecordBatch) -> StateRows:
    """Return the state that `encode` made a batch of.

    Raises
    ------
    SchemaMismatch
        If the batch is no encoded state.
    """
    metadata = batch.schema.metadata or {}
    if _FIELDS not in metadata or tuple(batch.schema.names[:3]) != IDENTITY:
        raise SchemaMismatch(
            f"a batch with the columns {batch.schema.names!r} is no encoded state; install what KeyedStore.extract gave"
        )
    fields = _fields(metadata[_FIELDS])
    columns = batch.columns
    split = len(columns) - len(fields)
    keys = pa.RecordBatch.from_arrays(columns[3:split], names=batch.schema.names[3:split])
    values = [_from_arrow(column, field) for column, field in zip(columns[split:], fields, strict=True)]
    hashes, checks, shards = (column.to_numpy(zero_copy_only=False) for column in columns[:3])
    return StateRows(hashes, checks, shards, keys, fields, values)


# A shard on the move waits for what follows, and the fields are always the same few.


@functools.lru_cache(64)
def _described(fields: tuple[Field, ...]) -> bytes:
    return json.dumps([[field.name, field.dtype.str, field.initial] for field in fields]).encode()


@functools.lru_cache(64)
def _fields(described: bytes) -> tuple[Field, ...]:
    return tuple(Field(name, np.dtype(dtype), initial) for name, dtype, initial in json.loads(described))


def _to_arrow(values: npt.NDArray[Any]) -> pa.Array:
    if values.dtype == object:
        return pa.array([cloudpickle.dumps(value) for value in values], pa.large_binary())
    return pa.array(values.view(np.int64) if values.dtype.kind in "Mm" else values)


def _from_arrow(column: pa.Array, field: Field) -> npt.NDArray[Any]:
    if field.is_object:
        values = np.empty(len(column), dtype=object)
        for row, pickled in enumerate(column):
            values[row] = cloudpickle.loads(pickled.as_buffer())
        return values
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers.view(field.dtype) if field.dtype.kind in "Mm" else numbers
