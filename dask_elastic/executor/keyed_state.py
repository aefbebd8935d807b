"""Keyed state as users see it: the key columns, then the results."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.state.view import value_result
from dask_elastic.topology.bundle import Bundle
from dask_elastic.topology.operators import Compute


def read_state(operator: Compute, store: PrimaryState, shards: Iterable[int] | None = None) -> pa.Table | None:
    """Return the state that a store has at this moment.

    Parameters
    ----------
    operator : Compute
        Whose state it is.
    store : PrimaryState
        The primary copy; flush remote tasks first to have their latest changes in it.
    shards : iterable of int, optional
        Only these; all of them if left out.

    Returns
    -------
    Table or None
        One row per key: the key columns, then the result of each aggregate, or each declared value of a function, null
        where the key has none. None before the first batch.
    """
    if store.input_schema is None or store.key_schema is None:
        return None
    keys, values = store.rows(shards)
    if operator.aggregates is not None:
        results = Bundle(operator.aggregates, store.input_schema).results(values)
    else:
        declared = operator.state or {}
        results = dict(zip(declared, value_result(declared, values), strict=True))
    return pa.table([*keys.columns, *results.values()], names=[*keys.schema.names, *results])
