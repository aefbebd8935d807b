"""The aggregates of one operator, bound together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError


class Bundle:
    """Several named aggregates over the same rows, with their state in one list of columns.

    Parameters
    ----------
    aggregates : mapping of str to Aggregate
        The aggregates by the name of their output column.
    schema : Schema
        The schema of the input.

    Attributes
    ----------
    bound : dict of str to BoundAggregate
        The bound aggregates by output column.

    Raises
    ------
    SchemaMismatch, TopologyError
        If an aggregate cannot be bound to the input; the message names its output column.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_elastic.topology.aggregate import Count, Max
    >>> bundle = Bundle({"flights": Count(), "worst": Max("delay")}, pa.schema({"delay": pa.int64()}))
    >>> [field.name for field in bundle.fields]
    ['flights.count', 'worst.value', 'worst.present']
    >>> rows = pa.record_batch({"delay": [5, 7, 6]})
    >>> after = bundle.update(bundle.initial(2), rows, Grouping(np.array([0, 0, 1]), 2))
    >>> bundle.results(after)["worst"].to_pylist()
    [7, 6]
    """

    def __init__(self, aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        self.bound: dict[str, BoundAggregate] = {}
        for name, aggregate in aggregates.items():
            try:
                self.bound[name] = aggregate.bind(schema)
            except (SchemaMismatch, TopologyError) as error:
                raise type(error)(f"output {name!r}: {error}") from error
        self.fields: tuple[Field, ...] = tuple(
            Field(f"{name}.{field.name}", field.dtype, field.initial, field.ragged)
            for name, bound in self.bound.items()
            for field in bound.fields
        )
        self.schema: pa.Schema = pa.schema(
            [field for name, bound in self.bound.items() for field in result_fields(name, bound)]
        )
        self._spans: dict[str, slice] = {}
        start = 0
        for name, bound in self.bound.items():
            self._spans[name] = slice(start, start + len(bound.fields))
            start += len(bound.fields)

    def initial(self, count: int) -> list[Values]:
        """Return the state of `count` keys without rows; see `BoundAggregate.initial`."""
        return [field.initially(count) for field in self.fields]

    def update(self, current: Sequence[Values], rows: pa.RecordBatch | ChosenRows, grouping: Grouping) -> list[Values]:
        """Return the state of the groups after some rows; see `BoundAggregate.update`."""
        if isinstance(rows, ChosenRows) and not all(bound.reads_chosen for bound in self.bound.values()):
            rows = rows.copied()
        after: list[Values] = []
        for name, bound in self.bound.items():
            after += bound.update(current[self._spans[name]], rows, grouping)
        return after

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        """Return the state of keys whose rows were aggregated in two parts; see `BoundAggregate.merge`."""
        merged: list[Values] = []
        for name, bound in self.bound.items():
            merged += bound.merge(left[self._spans[name]], right[self._spans[name]])
        return merged

    def split(self, current: Sequence[Values]) -> dict[str, Sequence[Values]]:
        """Return the state of each aggregate by output column.

        Parameters
        ----------
        current : sequence of ndarray or Ragged
            The state of some keys.

        Returns
        -------
        dict of str to sequence of (ndarray or Ragged)
            Its parts.

        Examples
        --------
        >>> from dask_elastic.topology.aggregate import Count, Mean
        >>> bundle = Bundle({"n": Count(), "mean": Mean("delay")}, pa.schema({"delay": pa.int64()}))
        >>> {name: len(parts) for name, parts in bundle.split(bundle.initial(3)).items()}
        {'n': 1, 'mean': 2}
        """
        return {name: current[span] for name, span in self._spans.items()}

    def results(self, current: Sequence[Values]) -> dict[str, pa.Array]:
        """Return the results by output column.

        Parameters
        ----------
        current : sequence of ndarray or Ragged
            The state of some keys.

        Returns
        -------
        dict of str to Array
            One result per key and column.

        Raises
        ------
        SchemaMismatch
            When a user-defined aggregate returns a result of another type than its own; names the output.
        """
        found: dict[str, pa.Array] = {}
        for name, bound in self.bound.items():
            try:
                result = bound.result(current[self._spans[name]])
            except SchemaMismatch as error:
                raise SchemaMismatch(f"output {name!r}: {error}") from error
            columns = result.flatten() if bound.spreads else [result]
            found |= {field.name: column for field, column in zip(result_fields(name, bound), columns, strict=True)}
        return found


def result_fields(output: str, bound: BoundAggregate) -> list[pa.Field]:
    """Return the columns that results have of an aggregate.

    Parameters
    ----------
    output : str
        The output of the aggregate.
    bound : BoundAggregate
        The aggregate.

    Returns
    -------
    list of Field
        One column, or one for each field if the aggregate spreads.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Count
    >>> result_fields("flights", Count().bind(pa.schema({})))
    [pyarrow.Field<flights: int64>]
    """
    return list(bound.type) if bound.spreads else [pa.field(output, bound.type)]
