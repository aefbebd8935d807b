"""Point query: the state of one key, from the only shard that can have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.routing.co_partition import key_hashes
from dask_elastic.routing.hashing import check_columns, hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.errors import StateError
from dask_elastic.vocab.listed_arrays import listed_array


def find_key(
    operator: Compute,
    store: PrimaryState | FusedStore,
    space: KeySpace,
    executor: int,
    key: Sequence[Any],
    now: float | None = None,
    groups: tuple[int, ...] | None = None,
) -> pa.Table | None:
    """Return the state of one key.

    Parameters
    ----------
    operator : Compute
        The operator whose state it is.
    store : PrimaryState or FusedStore
        The primary copy of one of its executors.
    space : KeySpace
        The operator's key space.
    executor : int
        Index of the store's executor.
    key : sequence
        A value for each key column.
    now : float, optional
        The time at which state has expired, as for `read_state`.
    groups : tuple of int, optional
        The key groups that this executor owns, where groups move between executors: its shards.

    Returns
    -------
    pyarrow.Table or None
        One row, of a compute with windows and of a join the key's rows; None if this executor has no state of the key.

    Raises
    ------
    StateError
        If the key has too many or too few values, or a value is not of its column's type.
    """
    if store.key_schema is None:
        return None
    query = _row(operator, store.key_schema, key)
    hashes = key_hashes(query, operator.keys, operator.routed_by, space.groups)
    shards = space.shards_of_few(hashes)
    if space.executor_of_one(hashes.item(0)) != executor if groups is None else shards[0] not in groups:
        return None
    table = read_state(operator, store, shards=shards, now=now)
    if table is None or table.num_rows == 0:
        return None
    rows = table.select(list(operator.keys)).combine_chunks().to_batches()[0]
    same = hash_columns(rows, operator.keys) == hash_columns(query, operator.keys)[0]
    same &= _checks(rows, operator) == _checks(query, operator)[0]
    found = np.flatnonzero(same)
    return table.take(found) if len(found) else None


def _row(operator: Compute, schema: pa.Schema, key: Sequence[Any]) -> pa.RecordBatch:
    if len(key) != len(operator.keys):
        raise StateError(
            f"operator {operator.name!r} has the key columns {operator.keys}: pass one value for each, not {len(key)}"
        )
    columns = []
    for name, value in zip(operator.keys, key, strict=True):
        try:
            columns.append(listed_array([value], schema.field(name).type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            kind = schema.field(name).type
            raise StateError(f"key column {name!r} of {operator.name!r} is {kind}, which {value!r} is not") from error
    return pa.RecordBatch.from_arrays(columns, names=list(operator.keys))


def _checks(rows: pa.RecordBatch, operator: Compute) -> np.ndarray:
    checks = check_columns(rows, operator.keys)
    return np.zeros(rows.num_rows, dtype=np.uint64) if checks is None else checks
