"""Functions over windows whose partial results are merged: aggregates that the user writes as two functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.topology import validation
from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.logic_level import KeyLogic, LeveledLogic, RowLogic
from dask_elastic.topology.windowing import Windowing
from dask_elastic.topology.windows.instances import Instances
from dask_elastic.topology.windows.one_key import ONE_KEY
from dask_elastic.topology.windows.partial_calls import make_partial_calls, name_of
from dask_elastic.topology.windows.partial_columns import PartialColumns
from dask_elastic.topology.windows.results import result_keys
from dask_elastic.vocab.errors import TopologyError

OUTPUT = "partial"
"""The output of the aggregate; results have the columns of partial results instead, unless they are partial ones."""

_ARGUMENTS = {KeyLogic: ("key", "rows"), RowLogic: ("row", "state")}


class MergedFunction(Aggregate):
    """A function of rows that returns a partial result, and a function that merges two of these.

    Parameters
    ----------
    logic : callable
        The function, which may be decorated with `per_key` or `per_row`.
    merge : callable
        Merges two partial results.
    output : Schema
        The columns of partial results.
    keys : tuple of str
        The key columns.

    Examples
    --------
    >>> from dask_elastic.topology.logic_level import per_key
    >>> @per_key(output={"most": pa.int64()})
    ... def worst(plane, rows):
    ...     return {"most": max(rows["delay"].to_pylist())}
    >>> function = MergedFunction(worst, lambda a, b: max(a, b, key=lambda one: one["most"]), worst.output, ("plane",))
    >>> rows = pa.record_batch({"plane": ["a", "b", "a"], "delay": [3, 7, 5]})
    >>> bound = function.bind(rows.schema)
    >>> state = bound.update(bound.initial(2), rows, Grouping(np.array([0, 1, 0]), 2))
    >>> bound.result(bound.merge(state, state)).to_pylist()
    [{'most': 5}, {'most': 7}]
    """

    reads_all = True

    def __init__(
        self, logic: Callable[..., Any], merge: Callable[..., Any], output: pa.Schema, keys: tuple[str, ...]
    ) -> None:
        self.logic = logic
        self.output = output
        self._merge = merge
        self._keys = keys

    @property
    def columns(self) -> tuple[str, ...]:
        """No columns by name: it reads all."""
        return ()

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        return _BoundMergedFunction(self.logic, self._merge, self.output, self._keys)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.output)
        return f"{name_of(self.logic)} -> ({columns}), merged by {name_of(self._merge)}"


class _BoundMergedFunction(BoundAggregate):
    spreads = True

    def __init__(
        self, logic: Callable[..., Any], merge: Callable[..., Any], output: pa.Schema, keys: tuple[str, ...]
    ) -> None:
        self._columns = PartialColumns(output)
        self._calls = make_partial_calls(logic, merge, self._columns.schema)
        self._keys = list(result_keys(keys))
        self.fields = self._columns.fields
        self.type = pa.struct(list(self._columns.schema))

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        if not grouping.is_sorted:
            rows = rows.take(pa.array(grouping.order))
        if ONE_KEY in rows.schema.names:
            rows = rows.select([name for name in rows.schema.names if name != ONE_KEY])
        offsets = np.append(grouping.starts, len(grouping.ordinals)).astype(np.int64)
        table = rows.select(self._keys).take(pa.array(offsets[:-1]))
        partials, groups = self._calls.made(rows, Instances(table, offsets))
        made = self._columns.stored(partials)
        if len(groups) < grouping.count:
            every = self.initial(grouping.count)
            for column, values in zip(every, made, strict=True):
                column[groups] = values
            made = every
        return self.merge(current, made)

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        has_right = right[-1]
        if not has_right.any():
            return list(left)
        both = np.flatnonzero(left[-1] & has_right)
        if len(both) == len(has_right):
            return self._merged(left, right)
        after = [np.where(has_right, new, before) for before, new in zip(left, right, strict=True)]
        if len(both):
            sides = ([column.take(both) for column in side] for side in (left, right))
            for column, values in zip(after, self._merged(*sides), strict=True):
                column[both] = values
        return after

    def _merged(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        rows = (self._columns.rows(list(side)) for side in (left, right))
        return list(self._columns.stored(self._calls.merged(*rows)))

    def result(self, current: Sequence[Values]) -> pa.Array:
        rows = self._columns.rows(list(current))
        return pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))


def merged_function(
    logic: object, merge: object, output: object, windowing: Windowing, keys: tuple[str, ...], where: str
) -> Mapping[str, Aggregate]:
    """Return a function over windows and its merge as an aggregate.

    Parameters
    ----------
    logic : object
        The function, which may be decorated with `per_key` or `per_row`.
    merge : object
        What merges two partial results.
    output : object
        The columns of the partial results of a function of batches, as a schema or a mapping of types.
    windowing : Windowing
        The windows.
    keys : tuple of str
        The key columns.
    where : str
        The operator, for the error text.

    Returns
    -------
    mapping of str to Aggregate
        The aggregate.

    Raises
    ------
    TopologyError
        When a function cannot be called, or the columns are not declared, or have names that are taken.

    Examples
    --------
    >>> from dask_elastic.topology.windows.definitions import tumbling
    >>> windowing = Windowing((tumbling("1h"),), ("at",))
    >>> merged_function(lambda rows, parts: rows, lambda a, b: a, {"n": pa.int64()}, windowing, ("plane",), "hourly")
    {'partial': <lambda> -> (n: int64), merged by <lambda>}
    """
    if isinstance(logic, Mapping | Aggregate):
        raise TopologyError(f"{where}: merge= is for functions; aggregates merge their partial results themselves.")
    leveled = isinstance(logic, LeveledLogic)
    if isinstance(logic, LeveledLogic):
        validation.check_function(logic.function, f"{where}: {logic.decorator}", *_ARGUMENTS[type(logic)])
        arguments = ("a", "b")
    else:
        validation.check_function(logic, where, "rows", "parts")
        arguments = ("left", "right")
    if isinstance(merge, LeveledLogic):
        raise TopologyError(f"{where}: merge is {merge!r}; give the function without a decorator.")
    validation.check_function(merge, f"{where}: merge", *arguments)
    schema = _declared(logic, output, where) if leveled else _schema(output, where)
    for name in schema.names:
        if name in keys or name in windowing.output_columns or schema.names.count(name) > 1:
            raise TopologyError(
                f"{where}: results have a column {name!r} from the key, the window or another part of output=; rename "
                "it in output=."
            )
    assert callable(logic)
    assert callable(merge)
    return {OUTPUT: MergedFunction(logic, merge, schema, keys)}


def _declared(logic: Any, output: object, where: str) -> pa.Schema:
    if output is not None:
        raise TopologyError(
            f"{where}: output= is for functions of batches; declare the columns in @de.{logic.decorator}(output=...)."
        )
    if logic.output is None or not logic.output.names:
        raise TopologyError(
            f"{where}: partial results are state, whose columns must be declared; write "
            f"@de.{logic.decorator}(output={{'most': pa.int64()}}) above the function."
        )
    found: pa.Schema = logic.output
    return found


def _schema(output: object, where: str) -> pa.Schema:
    if isinstance(output, Mapping) and all(
        isinstance(name, str) and isinstance(kind, pa.DataType) for name, kind in output.items()
    ):
        output = pa.schema(dict(output))
    if isinstance(output, pa.Schema) and not output.names:
        output = {}
    if not isinstance(output, pa.Schema):
        raise TopologyError(
            f"{where}: output is {output!r}, but partial results are state, whose columns must be declared; pass a "
            "pyarrow schema, or a dict such as output={'most': pa.int64()}."
        )
    return output
