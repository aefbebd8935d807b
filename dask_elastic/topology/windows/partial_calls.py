"""Calls of functions that return partial results, and of those that merge two, at three levels: batch, key, row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.casting import cast_rows
from dask_elastic.topology.logic_level import KeyLogic, LeveledLogic, RowLogic
from dask_elastic.topology.tables import as_batches
from dask_elastic.topology.windows.instances import Instances
from dask_elastic.vocab.errors import SchemaMismatch
from dask_elastic.vocab.listed_arrays import batch_of_dicts
from dask_elastic.vocab.python_values import python_columns

Function = Callable[..., Any]
Groups = npt.NDArray[np.intp]


class PartialCalls(ABC):
    """Calls a function and its merge.

    Parameters
    ----------
    function, merge : callable
        The function, and what merges two of its partial results.
    schema : Schema
        The columns of partial results.
    """

    def __init__(self, function: Function, merge: Function, schema: pa.Schema) -> None:
        self._function = function
        self._merge = merge
        self._schema = schema
        self._where = f"the function {name_of(function)}"
        self._where_merged = f"merge={name_of(merge)}"

    @abstractmethod
    def made(self, rows: pa.RecordBatch, parts: Instances) -> tuple[pa.RecordBatch, Groups]:
        """Return partial results of parts.

        Parameters
        ----------
        rows : RecordBatch
            The rows of all parts, one part after the other.
        parts : Instances
            The parts, with their keys.

        Returns
        -------
        partials : RecordBatch
            Partial results.
        groups : ndarray of intp
            The part that each is of; those missing have none.

        Raises
        ------
        TypeError
            When the function returns something else than a partial result for each part.
        """

    @abstractmethod
    def merged(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Return the merged partial results.

        Parameters
        ----------
        left, right : RecordBatch
            Partial results, row by row of the same parts.

        Returns
        -------
        RecordBatch
            As many rows.

        Raises
        ------
        TypeError
            When `merge` returns something else.
        """


class BatchPartials(PartialCalls):
    """Calls `function(rows, parts)` and `merge(left, right)`, both with batches for many keys."""

    def made(self, rows: pa.RecordBatch, parts: Instances) -> tuple[pa.RecordBatch, Groups]:
        """Return what the function returns, one row per part; see `PartialCalls.made`."""
        returned = self._function(rows, parts)
        return self._checked(returned, len(parts), self._where, parts.table.schema.names), np.arange(len(parts))

    def merged(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Return what `merge` returns; see `PartialCalls.merged`."""
        return self._checked(self._merge(left, right), left.num_rows, self._where_merged)

    def _checked(self, returned: Any, count: int, where: str, keys: list[str] | None = None) -> pa.RecordBatch:
        batches = as_batches(returned, where)
        table = pa.Table.from_batches(batches) if batches else pa.table({})
        table = table.drop_columns([name for name in keys or [] if name in table.schema.names])
        if table.num_rows != count:
            raise TypeError(
                f"{where} returned {table.num_rows} rows for {count}; return one partial result for each, in order."
            )
        (rows,) = table.combine_chunks().to_batches()
        try:
            return cast_rows(self._schema, rows, where, "output=")
        except SchemaMismatch as error:
            raise TypeError(str(error)) from error


class _DictPartials(PartialCalls):
    """Calls functions that return a partial result as a dict, and `merge` with two of these."""

    def merged(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Return what `merge` returns for each row; see `PartialCalls.merged`."""
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return self._batch([self._whole(self._merge(one, other), self._where_merged) for one, other in pairs])

    def _whole(self, returned: Any, where: str) -> Mapping[str, Any]:
        """Check a dict in which a column that was forgotten would be null in the result."""
        found = self._dict(returned, where)
        if lacking := [name for name in self._schema.names if name not in found]:
            raise TypeError(f"{where}: the partial result lacks {lacking[0]!r}; return all columns, None for null.")
        return found

    def _dict(self, returned: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(returned, Mapping):
            raise TypeError(f"{where} returned {returned!r}; return the partial result as a dict by column.")
        if unknown := [name for name in returned if name not in self._schema.names]:
            raise TypeError(
                f"{where}: the partial result has {unknown[0]!r}, which output= does not declare; its columns are "
                f"{self._schema.names}."
            )
        return returned

    def _batch(self, found: list[Mapping[str, Any]]) -> pa.RecordBatch:
        try:
            return batch_of_dicts(found, self._schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            declared = ", ".join(f"{field.name}: {field.type}" for field in self._schema)
            raise TypeError(
                f"{self._where}: a partial result does not fit the columns {declared} of output=: {error}"
            ) from error


class KeyPartials(_DictPartials):
    """Calls `function(key, rows)` for each part; None if the part has no partial result."""

    def made(self, rows: pa.RecordBatch, parts: Instances) -> tuple[pa.RecordBatch, Groups]:
        """Return what the function returns for each part; see `PartialCalls.made`."""
        found: list[Mapping[str, Any]] = []
        groups: list[int] = []
        bounds = parts.offsets.tolist()
        for number, key in enumerate(keys_of(parts.table)):
            returned = self._function(key, rows.slice(bounds[number], bounds[number + 1] - bounds[number]))
            if returned is not None:
                found.append(self._whole(returned, self._where))
                groups.append(number)
        return self._batch(found), np.array(groups, np.intp)


class RowPartials(_DictPartials):
    """Calls `function(row, state)` for each row of a part: `state` becomes the partial result."""

    def made(self, rows: pa.RecordBatch, parts: Instances) -> tuple[pa.RecordBatch, Groups]:
        """Return what the function has put into the state of each part; see `PartialCalls.made`."""
        states: list[dict[str, Any]] = [{} for _ in range(len(parts))]
        names = rows.schema.names
        columns = python_columns(rows)
        for part, values in zip(parts.ids.tolist(), zip(*columns, strict=True), strict=True):
            returned = self._function(dict(zip(names, values, strict=True)), states[part])
            if returned is not None:
                raise TypeError(
                    f"{self._where} returned {returned!r}; with merge=, put the partial result into state, and return "
                    "None."
                )
        groups = [number for number, state in enumerate(states) if state]
        return self._batch([self._dict(states[number], self._where) for number in groups]), np.array(groups, np.intp)


def make_partial_calls(logic: Function, merge: Function, schema: pa.Schema) -> PartialCalls:
    """Return what calls a function and its merge, at the function's level.

    Parameters
    ----------
    logic : callable
        The function, which may be decorated with `per_key` or `per_row`.
    merge : callable
        What merges two partial results.
    schema : Schema
        The columns of partial results.

    Returns
    -------
    PartialCalls
        The calls.

    Examples
    --------
    >>> from dask_elastic.topology.logic_level import per_key
    >>> @per_key(output={"rows": pa.int64()})
    ... def counted(key, rows):
    ...     return {"rows": rows.num_rows}
    >>> calls = make_partial_calls(counted, lambda a, b: {"rows": a["rows"] + b["rows"]}, counted.output)
    >>> rows = pa.record_batch({"plane": ["a", "a", "b"]})
    >>> found, _ = calls.made(rows, Instances(rows.take(pa.array([0, 2])), np.array([0, 2, 3])))
    >>> calls.merged(found, found).to_pylist()
    [{'rows': 4}, {'rows': 2}]
    """
    level: type[PartialCalls] = BatchPartials
    if isinstance(logic, LeveledLogic):
        level = RowPartials if isinstance(logic, RowLogic) else KeyPartials
        assert isinstance(logic, RowLogic | KeyLogic)
        logic = logic.function
    return level(logic, merge, schema)


def keys_of(table: pa.RecordBatch) -> Iterator[Any]:
    """Yield the key of each row of key columns: a tuple if there are several, None if there are none.

    Examples
    --------
    >>> list(keys_of(pa.record_batch({"plane": ["a"], "day": [3]})))
    [('a', 3)]
    """
    columns = [column.to_pylist() for column in table.columns]
    if len(columns) == 1:
        yield from columns[0]
    else:
        yield from zip(*columns, strict=True) if columns else [None] * table.num_rows


def name_of(function: Function) -> str:
    """Return how errors and drawings call a function."""
    return str(getattr(function, "__name__", repr(function)))
