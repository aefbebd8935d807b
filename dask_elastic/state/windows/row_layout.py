"""The fields of the state of a function over windows, in which each slot is a row that waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dask_elastic.state.joins.layout import BUFFER_FIELDS, KIND, TIME
from dask_elastic.state.joins.payload import payload_column
from dask_elastic.state.slots import Column
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.schema import plain_schema
from dask_elastic.topology.windows.one_key import ONE_KEY
from dask_elastic.topology.windows.results import result_keys
from dask_elastic.vocab.arrow_arrays import array_of, has_union
from dask_elastic.vocab.errors import TopologyError

ROW = 0
"""The kind of a slot that is a row; others are the marks of shards."""

END, ARRIVED, FIRST = range(len(BUFFER_FIELDS), len(BUFFER_FIELDS) + 3)
"""Positions of further fields: the end of the span that a row stands for, and what tells revisions apart.

`ARRIVED` is the event time up to which instances were closed when the row came, `FIRST` the number of the first row
that came to its shard with it.
"""

_OWN = (
    Field("end", np.dtype(np.int64), 0),
    Field("arrived", np.dtype(np.int64), 0),
    Field("first", np.dtype(np.int64), 0),
)


class RowLayout:
    """Where the columns of waiting rows are among the fields of the state.

    Parameters
    ----------
    operator : Compute
        A windowed compute whose logic is a function.
    schema : Schema
        The schema of its input.

    Attributes
    ----------
    fields : tuple of Field
        Those of a `RowBuffer`, in which the time is the begin of the row's span; end, arrival and first number; then
        two fields per column.
    schema : Schema
        The columns of the input.
    key_schema : Schema
        The key columns, which are not among the fields.
    keys : tuple of str
        Their names.
    reaches, searched
        What a `RowBuffer` keeps an index of: nothing.

    Raises
    ------
    TopologyError
        If a column has unions.

    Examples
    --------
    >>> from dask_elastic.topology.windowing import Windowing
    >>> from dask_elastic.topology.windows.definitions import tumbling
    >>> windowing = Windowing((tumbling("1h"),), ("at",))
    >>> operator = Compute("longest", ("plane",), print, windowing=windowing)
    >>> schema = pa.schema({"plane": pa.string(), "at": pa.timestamp("us"), "delay": pa.int64()})
    >>> [field.name for field in RowLayout(operator, schema).fields][-4:]
    ['row.at (timestamp[us])', 'row.at known', 'row.delay', 'row.delay known']
    """

    searched = False

    def __init__(self, operator: Compute, schema: pa.Schema):
        self.schema = plain_schema(schema)
        self.keys = operator.keys
        self.key_schema = pa.schema([self.schema.field(key) for key in operator.keys])
        self.reaches: dict[int, int] = {}
        self._names = [name for name in self.schema.names if name not in operator.keys]
        for name in self._names:
            if has_union(kind := self.schema.field(name).type):
                raise TopologyError(
                    f"operator {operator.name!r}: column {name!r} has type {kind}, and rows with unions cannot wait "
                    "until their windows close. Derive columns of other types from it in a map before the window, or "
                    "leave it out there."
                )
        self._columns = [payload_column(f"row.{name}", self.schema.field(name).type) for name in self._names]
        fields = (field for column in self._columns for field in column.fields)
        self.fields: tuple[Field, ...] = (*BUFFER_FIELDS, *_OWN, *fields)

    @property
    def shown(self) -> pa.Schema:
        """The columns of rows as functions get them: without the constant key of windows over all rows."""
        return pa.schema([field for field in self.schema if field.name != ONE_KEY])

    def stored(self, rows: pa.RecordBatch) -> list[Column]:
        """Return the values of the columns' fields for rows of the input."""
        named = zip(self._names, self._columns, strict=True)
        return [value for name, column in named for value in column.stored(rows.column(name))]

    def rows(self, keys: pa.RecordBatch, values: Sequence[Column]) -> pa.RecordBatch:
        """Return waiting rows as they came.

        Parameters
        ----------
        keys : RecordBatch
            Their key columns.
        values : sequence of (ndarray or Ragged)
            The values of all fields.

        Returns
        -------
        RecordBatch
            One row per slot.
        """
        found = {name: keys.column(name) for name in result_keys(self.keys)}
        place = len(BUFFER_FIELDS) + len(_OWN)
        for name, column in zip(self._names, self._columns, strict=True):
            known = values[place + 1]
            assert isinstance(known, np.ndarray)
            found[name] = column.column(values[place], known)
            place += 2
        return pa.RecordBatch.from_arrays([found[name] for name in self.shown.names], schema=self.shown)

    def table(self, keys: pa.RecordBatch, values: Sequence[Column]) -> pa.Table:
        """Return the waiting rows among all slots, as users see them: in the order of their time."""
        kinds, times = values[KIND], values[TIME]
        assert isinstance(kinds, np.ndarray)
        assert isinstance(times, np.ndarray)
        chosen = np.flatnonzero(kinds == ROW)
        chosen = chosen.take(np.argsort(times.take(chosen), kind="stable"))
        rows = self.rows(keys.take(array_of(chosen)), [column.take(chosen) for column in values])
        return pa.Table.from_batches([rows])
