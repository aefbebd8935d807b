"""What the logic of windows derives from the schema of its input, and the rows of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.windows.event_times import Times, timestamps
from dask_elastic.executor.windows.known_cells import keys_at
from dask_elastic.state.session import Located
from dask_elastic.state.slots import Column
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import window_fields
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.operators import Compute, select_columns
from dask_elastic.topology.windowing import REVISION, WINDOW_END, WINDOW_START
from dask_elastic.topology.windows.results import bound_columns, result_keys
from dask_elastic.vocab.arrow_arrays import array_of, no_rows
from dask_elastic.vocab.chosen_rows import ChosenRows


class BoundWindows(NamedTuple):
    """What depends on the schema of the input.

    Parameters
    ----------
    schema : Schema
        The schema of the input.
    bundle : Bundle
        The aggregates, bound to it.
    keys : list of int
        The positions of the key columns.
    results : Schema
        The schema of results.
    time : DataType
        The type of the begin and the end of an instance.
    own : int
        The position of the first field of the state that is no aggregate's.
    """

    schema: pa.Schema
    bundle: Bundle
    keys: list[int]
    results: pa.Schema
    time: pa.DataType
    own: int

    def instances(self, keys: pa.RecordBatch, starts: Times, ends: Times) -> pa.RecordBatch:
        """Return keys with the bounds of their instances, as dead letters name them."""
        bounds = [timestamps(starts, self.time), timestamps(ends, self.time)]
        names = [*keys.schema.names, WINDOW_START, WINDOW_END]
        return pa.RecordBatch.from_arrays([*keys.columns, *bounds], names=names)

    def batch(
        self,
        keys: list[pa.Array],
        starts: Times,
        ends: Times,
        values: list[Column],
        revision: npt.NDArray[np.int64] | int,
    ) -> pa.RecordBatch:
        """Return results as rows; a revision below 0, before an instance has closed, is null."""
        # Results of windows over all rows have no key.
        shown = [] if self.results.names[0] == WINDOW_START else keys
        columns = [*shown, timestamps(starts, self.time), timestamps(ends, self.time)]
        if REVISION in self.results.names:
            numbers = np.broadcast_to(np.asarray(revision, np.int64), len(starts))
            columns.append(array_of(numbers, mask=numbers < 0))
        columns += self.bundle.results(values).values()
        return pa.RecordBatch.from_arrays(columns, schema=self.results)

    def results_now(
        self,
        rows: pa.RecordBatch | ChosenRows,
        keys: Sequence[str],
        located: Located,
        chosen: npt.NDArray[np.intp],
        after: list[Column],
    ) -> list[pa.RecordBatch]:
        """Return the results of some of the instances that rows have just changed."""
        if not len(chosen):
            return []
        of_keys = keys_at(rows, keys, located.first.take(chosen))
        *values, starts, ends, revisions = (column.take(chosen) for column in after)
        return [self.batch(of_keys.columns, starts, ends, values, revisions)]


def bind_windows(operator: Compute, merges: bool, store: KeyedStore, schema: pa.Schema) -> BoundWindows:
    """Bind the aggregates of a windowed compute to its input, and declare their state.

    Parameters
    ----------
    operator : Compute
        The compute.
    merges : bool
        Whether partials are of slices, which are merged.
    store : KeyedStore
        Its state.
    schema : Schema
        The schema of the input.

    Returns
    -------
    BoundWindows
        What depends on the schema.

    Raises
    ------
    SchemaMismatch, TopologyError
        If a key, the time, or an aggregate does not fit the input.
    """
    windowing, aggregates = operator.windowing, operator.aggregates
    assert windowing is not None
    assert aggregates is not None
    select_columns(no_rows(schema), (*operator.keys, *windowing.time), operator.name)
    bundle = Bundle(aggregates, schema)
    keys = pa.schema([schema.field(key) for key in operator.keys])
    store.declare(keys, [*bundle.fields, *window_fields(operator, merges)])
    times = {name: schema.field(name).type for name in windowing.time}
    bounds = bound_columns(windowing, times, operator.name)
    shown = [keys.field(key) for key in result_keys(operator.keys)]
    results = pa.schema([*shown, *map(pa.field, bounds, bounds.values()), *bundle.schema])
    positions = [schema.get_field_index(key) for key in operator.keys]
    return BoundWindows(schema, bundle, positions, results, bounds[WINDOW_START], len(bundle.fields))
