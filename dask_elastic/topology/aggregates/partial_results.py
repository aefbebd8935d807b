"""Partial results of aggregates as columns: `Partial` returns the state as a value, `Merged` merges such values."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.ragged import Ragged, offsets_of
from dask_elastic.vocab.errors import SchemaMismatch

STATE, INPUT = "state", "input"
"""The parts of a partial result: the fields of the state, and empty lists of the types of the columns that it read."""


class Partial(Aggregate):
    """An aggregate whose result is its state, which another operator merges with others.

    Parameters
    ----------
    aggregate : Aggregate
        The aggregate.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Mean
    >>> bound = Partial(Mean("delay")).bind(pa.schema({"delay": pa.int64()}))
    >>> rows = pa.record_batch({"delay": [5, 8]})
    >>> bound.result(bound.update(bound.initial(1), rows, Grouping(np.array([0, 0]), 1))).to_pylist()
    [{'state': {'sum': 13.0, 'count': 2}, 'input': {'delay': []}}]
    """

    def __init__(self, aggregate: Aggregate) -> None:
        self.aggregate = aggregate
        self.reads_all = aggregate.reads_all

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads."""
        return self.aggregate.columns

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        bound = self.aggregate.bind(schema)
        if isinstance(self.aggregate, Merged):
            # What is merged from partial results is one, of the same rows.
            return _BoundPartial(bound, schema.field(self.columns[0]).type)
        return _BoundPartial(bound, _type_of(bound.fields, schema, self.columns))

    def __repr__(self) -> str:
        return f"Partial({self.aggregate!r})"


class Merged(Aggregate):
    """An aggregate whose input are partial results.

    Parameters
    ----------
    aggregate : Aggregate
        The aggregate that they are of.
    column : str
        The column with the partial results.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Count
    >>> partial = Partial(Count()).bind(pa.schema({}))
    >>> rows = pa.record_batch({"flights": partial.result([np.array([3, 5])])})
    >>> bound = Merged(Count(), "flights").bind(rows.schema)
    >>> bound.result(bound.update(bound.initial(1), rows, Grouping(np.array([0, 0]), 1))).to_pylist()
    [8]
    """

    def __init__(self, aggregate: Aggregate, column: str) -> None:
        self.aggregate = aggregate
        self._column = column

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the partial results."""
        return (self._column,)

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        kind = schema.field(self._column).type if self._column in schema.names else None
        if kind is None or not pa.types.is_struct(kind) or [field.name for field in kind] != [STATE, INPUT]:
            raise SchemaMismatch(
                f"{self!r} reads partial results, but the column {self._column!r} is {kind or 'missing'}; pass the "
                "results of compute(..., partials=True) on unchanged"
            )
        read = [pa.field(field.name, field.type.value_type) for field in kind.field(INPUT).type]
        bound = self.aggregate.bind(pa.schema(read))
        wanted = _type_of(bound.fields, pa.schema(read), self.aggregate.columns)
        if wanted != kind:
            raise SchemaMismatch(
                f"{self!r} reads partial results of another aggregate: the column {self._column!r} is {kind}, not "
                f"{wanted}"
            )
        return _BoundMerged(bound, self._column)

    def __repr__(self) -> str:
        return f"Merged({self.aggregate!r})"


def innermost(aggregate: Aggregate) -> Aggregate:
    """Return the aggregate of which partial results are made or merged.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Count
    >>> innermost(Partial(Merged(Count(), "flights")))
    Count()
    """
    while isinstance(aggregate, Partial | Merged):
        aggregate = aggregate.aggregate
    return aggregate


class _BoundPartial(BoundAggregate):
    def __init__(self, bound: BoundAggregate, kind: pa.DataType) -> None:
        self._bound = bound
        self.fields = bound.fields
        self.reads_chosen = bound.reads_chosen
        self.type = kind

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        return self._bound.update(current, rows, grouping)

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return self._bound.merge(left, right)

    def result(self, current: Sequence[Values]) -> pa.Array:
        state_type, input_type = (self.type.field(name).type for name in (STATE, INPUT))
        count = len(current[0])
        stored = [_stored(values, field.type) for values, field in zip(current, state_type, strict=True)]
        empty = pa.array([[]] * count, pa.list_(pa.null()))
        inputs = [pa.ListArray.from_arrays(empty.offsets, pa.array([], field.type.value_type)) for field in input_type]
        state = pa.StructArray.from_arrays(stored, fields=list(state_type))
        # Without fields, a struct would have no length.
        read = pa.StructArray.from_arrays(inputs, fields=list(input_type)) if inputs else pa.array([{}] * count)
        return pa.StructArray.from_arrays([state, read.cast(input_type)], fields=list(self.type))


class _BoundMerged(BoundAggregate):
    def __init__(self, bound: BoundAggregate, column: str) -> None:
        self._bound = bound
        self._column = column
        self.fields = bound.fields
        self.type = bound.type
        self.spreads = bound.spreads

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        state = rows.column(self._column).field(STATE)
        order = grouping.order
        found = [_values(column, field).take(order) for column, field in zip(state.flatten(), self.fields, strict=True)]
        return self._bound.merge(current, self._of_groups(found, grouping.ordinals.take(order)))

    def _of_groups(self, values: list[Values], groups: npt.NDArray[np.intp]) -> list[Values]:
        """Merge values of sorted groups to one each: neighbours in each round, as many rounds as sizes have bits."""
        while True:
            opens = np.ones(len(groups), np.bool_)
            opens[1:] = groups[1:] != groups[:-1]
            if opens.all():
                return values
            firsts = np.flatnonzero(opens)
            ranks = np.arange(len(groups)) - np.repeat(firsts, np.diff(np.append(firsts, len(groups))))
            right = np.flatnonzero(ranks % 2)
            kept = np.flatnonzero(ranks % 2 == 0)
            merged = self._bound.merge(
                [column.take(right - 1) for column in values], [column.take(right) for column in values]
            )
            places = np.searchsorted(kept, right - 1)
            values = [_placed(column.take(kept), places, new) for column, new in zip(values, merged, strict=True)]
            groups = groups.take(kept)

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return self._bound.merge(left, right)

    def result(self, current: Sequence[Values]) -> pa.Array:
        return self._bound.result(current)


def _placed(column: Values, places: npt.NDArray[np.intp], new: Values) -> Values:
    if isinstance(column, Ragged):
        return column.placed(places, new)
    column[places] = new
    return column


def _type_of(fields: Sequence[Field], schema: pa.Schema, columns: Sequence[str]) -> pa.DataType:
    state = pa.struct([pa.field(field.name, _arrow_type(field)) for field in fields])
    read = pa.struct([pa.field(name, pa.list_(schema.field(name).type)) for name in columns])
    return pa.struct([pa.field(STATE, state), pa.field(INPUT, read)])


def _arrow_type(field: Field) -> pa.DataType:
    kind = pa.binary() if field.dtype.hasobject else pa.from_numpy_dtype(field.dtype)
    return pa.list_(kind) if field.ragged else kind


def _stored(values: Values, kind: pa.DataType) -> pa.Array:
    if isinstance(values, Ragged):
        flat = _stored(np.ascontiguousarray(values.values), kind.value_type)
        offsets = offsets_of(values.lengths).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), flat)
    if values.dtype.hasobject:
        return pa.array([pickle.dumps(value) for value in values.tolist()], kind)
    return pa.array(values, kind, from_pandas=False)


def _values(column: pa.Array, field: Field) -> Values:
    if field.ragged:
        flat = _numpy(column.flatten(), field.dtype)
        lengths = column.value_lengths().to_numpy()
        return Ragged.of_lengths(flat, lengths)
    return _numpy(column, field.dtype)


def _numpy(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.hasobject:
        found = np.empty(len(column), object)
        found[:] = [pickle.loads(value) for value in column.to_pylist()]
        return found
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers.astype(dtype, copy=False)
