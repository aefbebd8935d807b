"""The fields of a join's state, in which each slot is a buffered row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.joins.payload import payload_column
from dask_elastic.state.slots import Column
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.joins.joining import LEFT, RIGHT, Joining, shared_name
from dask_elastic.vocab.arrow_arrays import array_of

KIND, TIME, NUMBER, HASH, CHECK, MATCHED = range(6)
"""Positions of the fields that are not columns of the rows."""

MARK, NEWEST = 2, 3
"""Kinds of slots beside `LEFT` and `RIGHT`: the mark of a shard, and the newest settled right row of a key.

A mark has the watermark in `TIME`, the number of the next row in `NUMBER`, the number of late rows in `HASH`, and that
of rows without a time in `CHECK`.
"""

BEGINNING = -(2**63)
"""The watermark of a shard that none has reached."""

BUFFER_FIELDS = (
    Field("kind", np.dtype(np.int8), -1),
    Field("time", np.dtype(np.int64), 0),
    Field("number", np.dtype(np.int64), 0),
    Field("key hash", np.dtype(np.uint64), 0),
    Field("key check", np.dtype(np.uint64), 0),
)
"""The fields that all buffered rows have, also those that wait for windows."""

_FIXED = (*BUFFER_FIELDS, Field("matched", np.dtype(np.bool_), False))


class JoinLayout:
    """Where the columns of buffered rows are among the fields of the state.

    Parameters
    ----------
    joining : Joining
        The join.

    Attributes
    ----------
    fields : tuple of Field
        Kind, time, number, hash and check of the key, and whether the row has matched; then two fields per column.
    keys : tuple of str
        The key columns.
    key_schema : Schema
        Their types.
    reaches : dict of int to int
        For how many microseconds after its time each kind of slot is needed.
    searched : bool
        Whether rows are searched by key and time.
    """

    def __init__(self, joining: Joining):
        self.joining = joining
        self.keys = joining.left.keys
        self.key_schema = pa.schema([joining.input.field(key) for key in self.keys])
        self.reaches = {side: joining.reaches[side] for side in (LEFT, RIGHT)}
        if joining.tolerance is not None:
            self.reaches[NEWEST] = joining.tolerance
        self.searched = joining.kind != "asof"
        self._columns = [payload_column(shared_name(place), kind) for place, kind in enumerate(joining.shared)]
        self.fields: tuple[Field, ...] = (*_FIXED, *(field for column in self._columns for field in column.fields))

    def stored(self, rows: pa.RecordBatch, side: int) -> list[Column]:
        """Return the values of the columns' fields for rows of a side, in the schema of the join's input."""
        values: list[Column] = []
        used = {*self.joining.sides[side].places.values()}
        for place, column in enumerate(self._columns):
            if place in used:
                values += column.stored(rows.column(shared_name(place)))
            else:
                values += [field.initially(rows.num_rows) for field in column.fields]
        return values

    def positions(self, side: int) -> list[int]:
        """Return the fields with the columns of a side, in the order of the columns."""
        starts = (len(_FIXED) + 2 * place for place in self.joining.sides[side].places.values())
        return [position for start in starts for position in (start, start + 1)]

    def columns(
        self, side: int, values: Sequence[Column], present: npt.NDArray[np.bool_] | None = None
    ) -> list[pa.Array]:
        """Return the columns of a side that are no keys.

        Parameters
        ----------
        side : int
            The side.
        values : sequence of (ndarray or Ragged)
            The values of the fields at `positions`.
        present : ndarray of bool, optional
            Which rows there are; all columns are null in the others.

        Returns
        -------
        list of Array
            The columns.
        """
        made = []
        for place, stored, known in zip(
            self.joining.sides[side].places.values(), values[::2], values[1::2], strict=True
        ):
            assert isinstance(known, np.ndarray)
            made.append(self._columns[place].column(stored, known if present is None else known & present))
        return made

    def table(self, keys: pa.RecordBatch, values: Sequence[Column]) -> pa.Table:
        """Return the buffered rows as users see them.

        Parameters
        ----------
        keys : RecordBatch
            The key columns of all slots.
        values : sequence of (ndarray or Ragged)
            The values of all fields.

        Returns
        -------
        Table
            The key columns, the column ``side``, and the columns of the results that are no keys.
        """
        kinds = values[KIND]
        assert isinstance(kinds, np.ndarray)
        parts = [
            self._side_table(keys, values, np.flatnonzero(np.isin(kinds, of)), side)
            for side, of in ((LEFT, [LEFT]), (RIGHT, [RIGHT, NEWEST]))
        ]
        return pa.concat_tables(parts)

    def _side_table(
        self, keys: pa.RecordBatch, values: Sequence[Column], chosen: npt.NDArray[np.intp], side: int
    ) -> pa.Table:
        joining, count = self.joining, len(chosen)
        names = [name for name in joining.output.names if name not in joining.left.keys]
        names = names[: len(joining.left.places) + len(joining.right.places)]
        fields = [values[position].take(chosen) for position in self.positions(side)]
        columns: list[pa.Array] = []
        for number, one in enumerate(joining.sides):
            kinds = (one.schema.field(name).type for name in one.places)
            columns += self.columns(side, fields) if number == side else nulls(kinds, count)
        which = pa.array(["left", "right"][side : side + 1] * count, pa.string())
        return pa.table([*keys.take(array_of(chosen)).columns, which, *columns], [*keys.schema.names, "side", *names])


def nulls(kinds: Iterable[pa.DataType], count: int) -> list[pa.Array]:
    """Return columns of nulls.

    Parameters
    ----------
    kinds : iterable of DataType
        Their types.
    count : int
        Their length.

    Returns
    -------
    list of Array
        One column per type.

    Examples
    --------
    >>> nulls([pa.int64()], 2)[0].to_pylist()
    [None, None]
    """
    return [pa.nulls(count, kind) for kind in kinds]
