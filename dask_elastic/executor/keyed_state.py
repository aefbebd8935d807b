"""The state of an executor as users see it."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.state.results import state_table
from dask_elastic.topology.operators import Compute


def read_state(
    operator: Compute, store: PrimaryState | FusedStore, shards: Iterable[int] | None = None, now: float | None = None
) -> pa.Table | None:
    """Return the current state of a store.

    Parameters
    ----------
    operator : Compute
        The operator whose state it is.
    store : PrimaryState or FusedStore
        The primary copy; it lacks changes that remote tasks have not flushed.
    shards : iterable of int, optional
        Only these shards; all shards by default.
    now : float, optional
        The time at which state has expired, seconds since the epoch, on the home's clock; in event time, state has
        expired by the last watermark. By default expired state that was not swept yet is included.

    Returns
    -------
    Table or None
        One row per key: the key columns, then the result of each aggregate, or each declared value, list and map of a
        function, null where the key has no value. Keys whose whole state has expired are omitted. None before the first
        batch.
    """
    if store.input_schema is None or store.key_schema is None:
        return None
    keys, values = store.rows(shards)
    return state_table(operator, store.input_schema, keys, values, now, store.event_time)
