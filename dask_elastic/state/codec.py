"""Encoding of keyed state as a record batch, for moves between nodes, flushes and checkpoints."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.index import Words
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import as_objects
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.errors import SchemaMismatch
from dask_elastic.vocab.listed_arrays import listed_array

IDENTITY = ("__hash", "__check", "__shard", "__deleted")
"""The first columns of encoded state."""

_FIELDS = b"dask_elastic.fields"


@dataclass(frozen=True)
class StateRows:
    """State of some keys, one row per key: identity, shard, key columns and fields.

    A row with `deleted` set is a tombstone: the key's state was deleted since the previous extract.
    """

    hashes: Words
    checks: Words
    shards: npt.NDArray[np.int32]
    keys: pa.RecordBatch
    fields: tuple[Field, ...]
    values: Sequence[Column]
    deleted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def kinds(self) -> frozenset[type]:
        """The classes of all Python objects in the state."""
        kinds: set[type] = set()
        for column in self.values:
            values = column.values if isinstance(column, Ragged) else column
            if values.dtype == np.dtype(object):
                kinds.update(map(type, values))
        return frozenset(kinds)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as one batch; see `encode`."""
        yield encode(self)


@dataclass(frozen=True)
class EncodedRows:
    """Rows that are copied from files when they are needed, in parts that fit in memory one at a time.

    Parameters
    ----------
    count : int
        The number of rows.
    kinds : frozenset of type
        The classes of Python objects that they may have.
    batches : callable
        Yields the rows as `encode` returns them; called once.
    """

    count: int
    kinds: frozenset[type]
    batches: Callable[[], Iterator[pa.RecordBatch]]

    def __len__(self) -> int:
        return self.count


def encode(state: StateRows) -> pa.RecordBatch:
    """Encode state as a record batch that contains all that `KeyedStore.install` needs.

    Parameters
    ----------
    state : StateRows
        The state.

    Returns
    -------
    RecordBatch
        The columns `IDENTITY`, the key columns, then the fields; the fields' types are in the schema's metadata.
        Python objects are pickled one by one, unless all are strings or None. A ragged field is a list column; lists
        of objects are pickled one by one, unless all are strings.
    """
    identity = state.hashes, state.checks, state.shards, state.deleted
    columns = [*(array_of(part) for part in identity), *state.keys.columns]
    columns += [_lists_to_arrow(v) if isinstance(v, Ragged) else _to_arrow(v) for v in state.values]
    names = [*IDENTITY, *state.keys.schema.names, *(field.name for field in state.fields)]
    return pa.RecordBatch.from_arrays(columns, names=names, metadata={_FIELDS: _described(state.fields)})


def decode(batch: pa.RecordBatch) -> StateRows:
    """Decode the state in a batch that `encode` made.

    Parameters
    ----------
    batch : RecordBatch
        Encoded state.

    Returns
    -------
    StateRows
        The state.

    Raises
    ------
    SchemaMismatch
        If the batch is not encoded state.
    """
    metadata = batch.schema.metadata or {}
    if _FIELDS not in metadata or tuple(batch.schema.names[: len(IDENTITY)]) != IDENTITY:
        raise SchemaMismatch(
            f"a batch with the columns {batch.schema.names!r} is not encoded state; install only batches that "
            "KeyedStore.extract returned"
        )
    fields = _fields(metadata[_FIELDS])
    columns = batch.columns
    split = len(columns) - len(fields)
    first = len(IDENTITY)
    keys = pa.RecordBatch.from_arrays(columns[first:split], names=batch.schema.names[first:split])
    values = [
        _lists_from_arrow(column, field) if field.ragged else _from_arrow(column, field)
        for column, field in zip(columns[split:], fields, strict=True)
    ]
    hashes, checks, shards, deleted = map(numpy_of, columns[:first])
    return StateRows(hashes, checks, shards, keys, fields, values, deleted)


# The next two are cached: they run while a moving shard is paused, and an operator's fields never change.


@functools.lru_cache(64)
def _described(fields: tuple[Field, ...]) -> bytes:
    return json.dumps([[field.name, field.dtype.str, field.initial, field.ragged] for field in fields]).encode()


@functools.lru_cache(64)
def _fields(described: bytes) -> tuple[Field, ...]:
    return tuple(
        Field(name, np.dtype(dtype), initial, ragged) for name, dtype, initial, ragged in json.loads(described)
    )


def _to_arrow(values: npt.NDArray[Any]) -> pa.Array:
    if values.dtype == object:
        text = _text(values)
        if text is not None:
            return text
        return listed_array([cloudpickle.dumps(value) for value in values], pa.large_binary())
    return array_of(values.view(np.int64) if values.dtype.kind in "Mm" else values)


def _text(values: npt.NDArray[Any]) -> pa.Array | None:
    """Return objects that all are strings or None as an Arrow array, which is several times as fast as pickling."""
    if any(value is not None and type(value) is not str for value in values):
        return None
    try:
        return listed_array(values, pa.large_string())
    except UnicodeEncodeError:  # A lone surrogate; pickling supports it.
        return None


def _from_arrow(column: pa.Array, field: Field) -> npt.NDArray[Any]:
    if field.is_object and pa.types.is_large_string(column.type):
        return as_objects(column.to_pylist())
    if field.is_object:
        values = np.empty(len(column), dtype=object)
        for row, pickled in enumerate(column):
            values[row] = cloudpickle.loads(pickled.as_buffer())
        return values
    numbers = numpy_of(column)
    return numbers.view(field.dtype) if field.dtype.kind in "Mm" else numbers


def _lists_to_arrow(lists: Ragged) -> pa.Array:
    if lists.dtype != object:
        return pa.LargeListArray.from_arrays(array_of(lists.offsets), _to_arrow(lists.values))
    text = _text(lists.values)
    if text is not None:
        return pa.LargeListArray.from_arrays(array_of(lists.offsets), text)
    return listed_array([cloudpickle.dumps(values) for values in lists.to_lists()], pa.large_binary())


def _lists_from_arrow(column: pa.Array, field: Field) -> Ragged:
    if not pa.types.is_large_list(column.type):
        listed = [cloudpickle.loads(pickled.as_buffer()) for pickled in column]
        lengths = np.array([len(values) for values in listed], np.int64)
        return Ragged.of_lengths(as_objects([value for values in listed for value in values]), lengths)
    offsets = numpy_of(column.offsets)
    # Not `values`, which would include elements outside of a slice.
    elements = column.flatten()
    values = as_objects(elements.to_pylist()) if field.is_object else _from_arrow(elements, field)
    return Ragged(values, offsets - offsets[:1])
