"""Keyed state as users see it: the key columns, then the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dask_elastic.state.expiry.times import ExpiryTimes
from dask_elastic.state.joins.layout import JoinLayout
from dask_elastic.state.layout import StateLayout, layout_of
from dask_elastic.state.slots import Column
from dask_elastic.state.windows.instance_marks import unmarked
from dask_elastic.state.windows.row_layout import RowLayout
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.known_schemas import result_types
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.window_time import window_time_type
from dask_elastic.topology.windowing import WINDOW_END, WINDOW_START
from dask_elastic.topology.windows.results import result_keys
from dask_elastic.vocab.arrow_arrays import array_of, no_rows


def state_table(
    operator: Compute,
    input_schema: pa.Schema,
    keys: pa.RecordBatch,
    values: list[Column],
    now: float | None = None,
    event_time: int | None = None,
) -> pa.Table:
    """Return stored state as values.

    Parameters
    ----------
    operator : Compute
        The operator whose state it is.
    input_schema : Schema
        The schema of its input: state is stored as plain numbers, its values have the types of the input.
    keys : RecordBatch
        The key columns.
    values : list of (ndarray or Ragged)
        One column per field.
    now : float, optional
        The time at which state has expired, seconds since the epoch. By default expired state that was not swept yet
        is included.
    event_time : int, optional
        The event time by which state has expired, microseconds since the epoch; None before the first watermark.

    Returns
    -------
    Table
        One row per key: the key columns, then the result of each aggregate, or each declared value, list and map of a
        function, null where the key has no value. Keys whose whole state has expired are omitted. Of a join, one row
        per buffered row; see `JoinLayout.table`. Of a function over windows, the rows that wait.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Count
    >>> planes = Compute("planes", ("plane",), {"flights": Count()})
    >>> keys = pa.record_batch({"plane": ["a", "b"]})
    >>> state_table(planes, pa.schema({"plane": pa.string()}), keys, [np.array([3, 5])]).to_pylist()
    [{'plane': 'a', 'flights': 3}, {'plane': 'b', 'flights': 5}]
    """
    if operator.join is not None:
        return JoinLayout(operator.join).table(keys, values)
    if operator.windowing is not None and operator.function is not None:
        return RowLayout(operator, input_schema).table(keys, values)
    if operator.aggregates is not None:
        bundle = Bundle(operator.aggregates, input_schema)
        results = _cells(operator, input_schema, values[len(bundle.fields) :]) | bundle.results(values)
    else:
        layout = layout_of(operator)
        if now is not None and (layout.expires or layout.expires_in_event_time):
            times = ExpiryTimes(now) if event_time is None else ExpiryTimes(now, event_time)
            keys, values = _unexpired(layout, keys, values, times)
        results = layout.results(values)
    shown = keys.select(list(result_keys(tuple(keys.schema.names))))
    table = pa.table([*shown.columns, *results.values()], names=[*shown.schema.names, *results])
    if operator.windowing is not None and operator.windowing.counted:
        # The slot with the number of a key's rows may have no slice.
        return table.filter(array_of(np.less(*values[len(bundle.fields) : len(bundle.fields) + 2])))
    return table


def empty_state(operator: Compute, schema: pa.Schema | None) -> pa.Table:
    """Return the state before the first batch, as `state_table` would return it afterwards without any key.

    Parameters
    ----------
    operator : Compute
        The operator.
    schema : Schema or None
        The schema of its input, None if it is not known.

    Returns
    -------
    Table
        No rows; columns of unknown type have the type null.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Count
    >>> empty_state(Compute("planes", ("plane",), {"flights": Count()}), None).schema
    plane: null
    flights: int64
    """
    if operator.join is not None:
        layout_of_join = JoinLayout(operator.join)
        no_keys = pa.RecordBatch.from_pylist([], pa.schema([operator.join.input.field(key) for key in operator.keys]))
        return layout_of_join.table(no_keys, [field.initially(0) for field in layout_of_join.fields])
    keys = result_keys(operator.keys)
    if operator.windowing is not None and operator.function is not None and schema is not None:
        return RowLayout(operator, schema).shown.empty_table()
    types = {key: pa.null() if schema is None else schema.field(key).type for key in keys}
    if operator.aggregates is not None:
        types |= {name: column.type for name, column in _cells(operator, schema, [[], []]).items()}
        types |= {name: kind or pa.null() for name, kind in result_types(operator, schema).items()}
    else:
        layout = layout_of(operator)
        results = layout.results([field.initially(0) for field in layout.fields])
        types |= {name: column.type for name, column in results.items()}
    return pa.Table.from_batches([no_rows(pa.schema(types))])


def _cells(operator: Compute, schema: pa.Schema | None, fields: Sequence[Column]) -> dict[str, pa.Array]:
    """Return begin and end of the slices or instances that partials are of; nothing without windows."""
    windowing = operator.windowing
    if windowing is None:
        return {}
    if windowing.shares:
        fields = [unmarked(np.asarray(fields[0], np.int64)), *fields[1:]]
    kind = pa.int64() if windowing.counted else pa.timestamp("us")
    if windowing.time and not windowing.counted and schema is not None:
        kind = pa.timestamp("us", window_time_type(schema.field(windowing.time[0]).type, windowing.time[0]).tz)
    named = zip((WINDOW_START, WINDOW_END), fields, strict=False)
    return {name: array_of(np.asarray(times, np.int64)).view(kind) for name, times in named}


def _unexpired(
    layout: StateLayout, keys: pa.RecordBatch, values: list[Column], times: ExpiryTimes
) -> tuple[pa.RecordBatch, list[Column]]:
    left = layout.unexpired(values, times)
    chosen = np.flatnonzero(layout.has_any(left, keys.num_rows))
    if len(chosen) == keys.num_rows:
        return keys, left
    return keys.take(array_of(chosen)), [column.take(chosen) for column in left]
