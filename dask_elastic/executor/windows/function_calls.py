"""Calls of functions over windows with the rows of instances, at three levels: of batches, of keys, or of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.executor.error_policy import Errors, error_text
from dask_elastic.executor.function_logic import DictRows, note_key, note_row
from dask_elastic.topology.logic_level import KeyLogic, RowLogic
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.tables import as_batches, is_table
from dask_elastic.topology.windowing import REVISION, WINDOW_END, WINDOW_START
from dask_elastic.topology.windows.instances import Instance, Instances, InstanceState
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import ElasticError
from dask_elastic.vocab.python_values import python_columns

MOST_ROWS = 1 << 18
"""A function of batches is called several times for more rows, unless they are of one instance."""


class FunctionCalls(ABC):
    """Calls a function over windows.

    Parameters
    ----------
    operator : Compute
        The operator.
    """

    def __init__(self, operator: Compute):
        assert operator.function is not None
        self.where = f"compute {operator.name!r}"
        self._function: Callable[..., Any] = operator.function

    @abstractmethod
    def outputs(self, rows: pa.RecordBatch, instances: Instances, errors: Errors | None) -> list[pa.RecordBatch]:
        """Return what the function returns for instances.

        Parameters
        ----------
        rows : RecordBatch
            The rows of all instances, one after the other.
        instances : Instances
            The instances.
        errors : dict of int to str, optional
            Gets the instances for which the function raises, if it is called for each.

        Returns
        -------
        list of RecordBatch
            The results.
        """


class BatchCalls(FunctionCalls):
    """Calls `function(rows, instances)`; an error has no instance to blame."""

    def outputs(self, rows: pa.RecordBatch, instances: Instances, errors: Errors | None) -> list[pa.RecordBatch]:
        """Return what the function returns; see `FunctionCalls.outputs`."""
        taken = instances.table.select([WINDOW_START, WINDOW_END]).take(array_of(instances.ids))
        for name in (WINDOW_START, WINDOW_END):
            rows = with_column(rows, name, taken.column(name))
        return as_batches(self._function(rows, instances), self.where)


class InstanceCalls(FunctionCalls):
    """Calls a function for each instance, or its rows; results get the columns of the instance.

    Parameters
    ----------
    operator : Compute
        The operator.
    """

    def __init__(self, operator: Compute):
        super().__init__(operator)
        assert isinstance(operator.logic, KeyLogic | RowLogic)
        self._function: Callable[..., Any] = operator.logic.function
        self._per_row = isinstance(operator.logic, RowLogic)
        self._output = DictRows(operator.logic.output, self.where)

    def outputs(self, rows: pa.RecordBatch, instances: Instances, errors: Errors | None) -> list[pa.RecordBatch]:
        """Return what the function returns; see `FunctionCalls.outputs`."""
        made: list[tuple[int, Any]] = []
        lengths = instances.lengths.tolist()
        named = zip(_keys(instances.table), spans_of(instances.table), instances.offsets.tolist(), strict=False)
        for number, (key, window, start) in enumerate(named):
            try:
                part = rows.slice(start, lengths[number])
                items = self._of_rows(part, window) if self._per_row else self._of_key(key, part, window)
            except Exception as error:
                if errors is None or isinstance(error, ElasticError):
                    note_row(error, number)
                    if key is not None:
                        note_key(error, key)
                    raise
                errors[number] = error_text(error)
            else:
                made += [(number, item) for item in items]
        return self._batches(made, instances.table)

    def _of_key(self, key: Any, rows: pa.RecordBatch, window: Instance) -> list[Any]:
        returned = self._function(key, rows, window)
        if returned is None:
            return []
        if isinstance(returned, Mapping):
            return [returned]
        if is_table(returned):
            return as_batches(returned, self.where)
        items: list[Any] = []
        for item in self._output.listed(returned, self.where):
            items += [item] if isinstance(item, Mapping) else as_batches(item, self.where)
        return items

    def _of_rows(self, rows: pa.RecordBatch, window: Instance) -> list[Any]:
        state, names = InstanceState(window), rows.schema.names
        items: list[Any] = []
        columns = python_columns(rows)
        for number, values in enumerate(zip(*columns, strict=True), 1):
            state.is_last = number == rows.num_rows
            returned = self._function(dict(zip(names, values, strict=True)), state)
            if returned is not None:
                items += [returned] if isinstance(returned, Mapping) else self._output.listed(returned)
        return items

    def _batches(self, made: list[tuple[int, Any]], table: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return results as batches, in their order, with the columns of their instances in front."""
        outputs: list[pa.RecordBatch] = []
        for items in _alike(made):
            if isinstance(items[0][1], Mapping):
                (rows,) = self._output.batches([item for _, item in items])
                owners = np.array([number for number, _ in items])
            else:
                rows = pa.concat_batches([item for _, item in items])
                owners = np.repeat([number for number, _ in items], [item.num_rows for _, item in items])
            of_instance = table.take(array_of(owners))
            own = [name for name in rows.schema.names if name not in table.schema.names]
            columns = [*of_instance.columns, *(rows.column(name) for name in own)]
            schema = pa.schema([*table.schema, *(rows.schema.field(name) for name in own)])
            outputs.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return outputs


def make_calls(operator: Compute) -> FunctionCalls:
    """Return what calls the function of a windowed compute, at its level."""
    return InstanceCalls(operator) if isinstance(operator.logic, KeyLogic | RowLogic) else BatchCalls(operator)


def with_column(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Return rows with a column, in the place of one of this name, or behind the others.

    Parameters
    ----------
    rows : RecordBatch
        The rows.
    name : str
        The name of the column.
    column : Array
        The column.

    Returns
    -------
    RecordBatch
        The rows with the column.

    Examples
    --------
    >>> with_column(pa.record_batch({"a": [1]}), "b", pa.array([2])).to_pydict()
    {'a': [1], 'b': [2]}
    """
    place = rows.schema.get_field_index(name)
    return rows.append_column(name, column) if place < 0 else rows.set_column(place, name, column)


def spans_of(table: pa.RecordBatch) -> Iterator[Instance]:
    """Return the instances in a table, one by one; times finer than microseconds do not occur."""
    kind = table.schema.field(WINDOW_START).type
    times = [table.column(name).cast(pa.timestamp("us", kind.tz)).to_pylist() for name in (WINDOW_START, WINDOW_END)]
    revisions = table.column(REVISION).to_pylist() if REVISION in table.schema.names else [0] * table.num_rows
    return map(Instance, *times, revisions)


def _keys(table: pa.RecordBatch) -> Iterator[Any]:
    """Return the key of each instance, as functions per key get it; None for windows over all rows."""
    names = table.schema.names[: table.schema.get_field_index(WINDOW_START)]
    columns = python_columns(table.select(names))
    if len(columns) == 1:
        yield from columns[0]
    else:
        yield from zip(*columns, strict=True) if columns else [None] * table.num_rows


def _alike(made: list[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    """Divide results where rows as dicts follow tables, or tables of other columns."""
    waiting: list[tuple[int, Any]] = []
    before: Any = None
    for number, item in made:
        kind = None if isinstance(item, Mapping) else item.schema
        if waiting and kind != before:
            yield waiting
            waiting = []
        waiting.append((number, item))
        before = kind
    if waiting:
        yield waiting
