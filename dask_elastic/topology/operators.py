"""The operators of a topology, and the execution of the stateless ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.aggregates.aggregation import Aggregate
from dask_elastic.topology.joins.joining import Joining
from dask_elastic.topology.sink import Sink
from dask_elastic.topology.source import Source
from dask_elastic.topology.state_kind import Declared
from dask_elastic.topology.tables import as_batches, describe_type, is_of_pandas
from dask_elastic.topology.timer import Timer
from dask_elastic.topology.windowing import Windowing
from dask_elastic.vocab.errors import SchemaMismatch
from dask_elastic.vocab.state_record import Clock


def select_columns(rows: pa.RecordBatch, columns: tuple[str, ...] | None, operator: str) -> pa.RecordBatch:
    """Return the rows with only the columns that an operator reads.

    Parameters
    ----------
    rows : RecordBatch
        Rows with at least these columns.
    columns : tuple of str or None
        The columns to select; None for all.
    operator : str
        The name of the operator, for the error text.

    Returns
    -------
    RecordBatch
        The same rows, without a copy.

    Raises
    ------
    SchemaMismatch
        When a column is missing or occurs more than once.

    Examples
    --------
    >>> rows = pa.RecordBatch.from_pydict({"a": [1], "b": [2]})
    >>> select_columns(rows, ("b",), "per_b").schema.names
    ['b']
    >>> select_columns(rows, ("c",), "per_c")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SchemaMismatch: operator 'per_c' reads column 'c', which its input lacks; ...
    """
    if columns is None:
        return rows
    present = rows.schema.names
    if present == list(columns):
        return rows
    for column in columns:
        if present.count(column) != 1:
            what = "lacks" if column not in present else "has more than once"
            raise SchemaMismatch(
                f"operator {operator!r} reads column {column!r}, which its input {what}; the columns are {present}. "
                "Correct the name, or add the column in an upstream operator."
            )
    return rows.select(list(columns))


@dataclass(frozen=True, eq=False)
class SourceOperator:
    """A source and its name in the topology.

    Parameters
    ----------
    name : str
        The operator's name in the topology.
    source : Source
        The source.
    """

    name: str
    source: Source
    kind: ClassVar[str] = "source"


@dataclass(frozen=True, eq=False)
class MapOperator:
    """An operator that turns each batch into zero or more batches.

    Parameters
    ----------
    name : str
        The operator's name in the topology.
    function : callable
        Takes a RecordBatch; returns None, a table that `as_table` converts, or an iterable of tables.
    columns : tuple of str or None
        The columns that the function gets; None for all.
    output : Schema, optional
        The schema of what the function returns, if it is known.
    keeps : tuple of str
        The columns that the function returns with the values that they had in the row from which it made them.

    Examples
    --------
    >>> first = MapOperator("first", lambda rows: rows.slice(0, 1), ("a",))
    >>> [rows.to_pydict() for rows in first.apply(pa.RecordBatch.from_pydict({"a": [1, 2], "b": [3, 4]}))]
    [{'a': [1]}]
    """

    name: str
    function: Callable[[pa.RecordBatch], Any]
    columns: tuple[str, ...] | None = None
    output: pa.Schema | None = None
    keeps: tuple[str, ...] = ()
    kind: ClassVar[str] = "map"

    def apply(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Run the function on one batch.

        Parameters
        ----------
        rows : RecordBatch
            The input.

        Returns
        -------
        list of RecordBatch
            The output, without empty batches.

        Raises
        ------
        SchemaMismatch
            When the input lacks one of `columns`.
        TypeError
            When the function returns anything else than tables.
        """
        return as_batches(self.function(select_columns(rows, self.columns, self.name)), f"map {self.name!r}")


@dataclass(frozen=True, eq=False)
class Filter:
    """An operator that keeps the rows for which a predicate holds; null counts as false.

    Parameters
    ----------
    name : str
        The operator's name in the topology.
    predicate : callable or pyarrow.compute.Expression
        Takes a RecordBatch and returns one boolean per row, as an Arrow or NumPy array; or an expression over columns.
    columns : tuple of str or None
        The columns that the predicate reads; None for all. Rows that are kept also keep their other columns.
    keep : tuple of str or None
        The columns that downstream operators read, so that no others are copied; None for all. Set by
        `build_components`.

    Examples
    --------
    >>> late = Filter("late", pc.field("delay") > 15)
    >>> rows = pa.RecordBatch.from_pydict({"delay": [3, None, 20], "plane": ["a", "b", "c"]})
    >>> [kept.to_pydict() for kept in late.apply(rows)]
    [{'delay': [20], 'plane': ['c']}]
    """

    name: str
    predicate: Callable[[pa.RecordBatch], Any] | pc.Expression
    columns: tuple[str, ...] | None = None
    keep: tuple[str, ...] | None = None
    kind: ClassVar[str] = "filter"

    def apply(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Run the predicate on one batch.

        Parameters
        ----------
        rows : RecordBatch
            The input.

        Returns
        -------
        list of RecordBatch
            The rows that are kept, in order: the input itself if these are all rows, no batch if there are none.

        Raises
        ------
        SchemaMismatch
            When the input lacks one of `columns`.
        TypeError
            When the predicate returns anything else than booleans.
        ValueError
            When the number of booleans differs from the number of rows.
        """
        mask = self._mask(select_columns(rows, self.columns, self.name))
        if len(mask) != rows.num_rows:
            raise ValueError(
                f"filter {self.name!r} returned {len(mask)} booleans for a batch of {rows.num_rows} rows; "
                "return one boolean per row."
            )
        kept = mask.true_count
        if kept == 0:
            return []
        rows = self._pruned(rows)
        return [rows] if kept == rows.num_rows else [rows.filter(mask)]

    def _mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        if isinstance(self.predicate, pc.Expression):
            return self._booleans(evaluate(self.predicate, rows))
        return self._booleans(self.predicate(rows))

    def _booleans(self, returned: Any) -> pa.BooleanArray:
        mask = returned
        is_bools = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.ndim == 1
        if is_bools or (is_of_pandas(mask) and hasattr(mask, "array")):
            mask = pa.array(mask)
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        if isinstance(mask, pa.BooleanArray):
            return mask
        raise TypeError(
            f"filter {self.name!r} returned {describe_type(returned)}; return one boolean per row, as a pyarrow "
            "BooleanArray or a NumPy array of bool."
        )

    def _pruned(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        # A missing column is reported by the downstream operator that reads it.
        if self.keep is None:
            return rows
        wanted = [column for column in self.keep if column in rows.schema.names]
        return rows if wanted == rows.schema.names else rows.select(wanted)


@dataclass(frozen=True, eq=False)
class Compute:
    """An operator that keeps state per key: a dict of aggregates, or a function of a batch and the state of its keys.

    Parameters
    ----------
    name : str
        The operator's name in the topology.
    keys : tuple of str
        The key columns.
    logic : mapping of str to Aggregate, callable, or Joining
        The aggregates by output column, or `function(batch, state)`, or the definition of a join.
    state : mapping of str to type, optional
        What a function keeps per key, by name: a `Value`, `List` or `Map`. An Arrow type or `object` means a `Value`.
    executors : int, optional
        The number of executors into which the key space is divided; None lets the engine choose.
    shards : int
        The number of shards of each executor.
    timers : mapping of str to Timer, optional
        The timers that a function can set for each key, by name.
    store : str, optional
        Where the state is kept: one of `STORES`; None for the job's option `state_store`.
    windowing : Windowing, optional
        The windows over which it computes; None for the whole stream.
    partition_by : tuple of str, optional
        The key columns whose values may decide where a row is computed; None for all of them.
    keeps : tuple of str
        As for `MapOperator`; aggregates keep the key columns.
    routed_by : tuple of str, optional
        The key columns by whose hash rows are routed; None for all. Set by `build_components`.
    time : str, optional
        The column of event time by which state expires; None if none does in event time.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Count, Mean
    >>> Compute("planes", ("plane",), {"flights": Count(), "delay": Mean("delay")}).columns
    ('plane', 'delay')
    """

    name: str
    keys: tuple[str, ...]
    logic: Mapping[str, Aggregate] | Callable[[pa.RecordBatch, Any], Any] | Joining
    state: Mapping[str, Declared] | None = None
    executors: int | None = None
    shards: int = 256
    timers: Mapping[str, Timer] | None = None
    store: str | None = None
    windowing: Windowing | None = None
    partition_by: tuple[str, ...] | None = None
    keeps: tuple[str, ...] = ()
    routed_by: tuple[str, ...] | None = None
    time: str | None = None
    kind: ClassVar[str] = "compute"
    stateful: ClassVar[bool] = True

    @property
    def aggregates(self) -> Mapping[str, Aggregate] | None:
        """The aggregates by output column; None if the logic is a function or a join."""
        return self.logic if isinstance(self.logic, Mapping) else None

    @property
    def function(self) -> Callable[[pa.RecordBatch, Any], Any] | None:
        """The function of a batch and its state; None if the logic is aggregates or a join."""
        return None if isinstance(self.logic, Mapping | Joining) else self.logic

    @property
    def join(self) -> Joining | None:
        """The definition of the join; None if the logic is another."""
        return self.logic if isinstance(self.logic, Joining) else None

    @property
    def delay(self) -> int:
        """Microseconds by which times in its output may be older than the watermark of its input."""
        return 0 if self.join is None else self.join.delay

    @property
    def clocks(self) -> frozenset[Clock]:
        """The clocks of its timers; windows close in event time, joins end in it, and state may expire in it."""
        windowed = self.windowing is not None and not self.windowing.counted
        closing: set[Clock] = {"event"} if windowed or self.join is not None or self.time is not None else set()
        return frozenset(timer.clock for timer in (self.timers or {}).values()) | closing

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that it reads, keys and times first.

        None, for all, of functions, of aggregates that read all columns, and if late rows are passed on.
        """
        if self.join is not None:
            return tuple(self.join.input.names)
        windowing = self.windowing
        passes_on = windowing is not None and (windowing.late == "stream" or windowing.null_time == "late")
        if not isinstance(self.logic, Mapping) or passes_on:
            return None
        if any(aggregate.reads_all for aggregate in self.logic.values()):
            return None
        read = (column for aggregate in self.logic.values() for column in aggregate.columns)
        return tuple(dict.fromkeys((*self.keys, *(() if windowing is None else windowing.time), *read)))


@dataclass(frozen=True, eq=False)
class SinkOperator:
    """A sink and its name in the topology.

    Parameters
    ----------
    name : str
        The operator's name in the topology.
    sink : Sink
        The sink.
    """

    name: str
    sink: Sink
    kind: ClassVar[str] = "sink"


Stateless: TypeAlias = MapOperator | Filter
Operator: TypeAlias = SourceOperator | MapOperator | Filter | Compute | SinkOperator


def evaluate(expression: pc.Expression, rows: pa.RecordBatch) -> pa.Array:
    """Evaluate an expression on each row, in the calling thread.

    Parameters
    ----------
    expression : pyarrow.compute.Expression
        An expression over the columns of the rows.
    rows : RecordBatch
        The rows.

    Returns
    -------
    Array
        One value per row.

    Examples
    --------
    >>> evaluate(pc.field("a") * 2, pa.RecordBatch.from_pydict({"a": [1, 2]})).to_pylist()
    [2, 4]
    """
    from pyarrow import acero

    # Without threads the plan keeps the order of rows and starts several times as fast.
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([rows]))),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"])),
        ]
    )
    value = plan.to_table(use_threads=False).column(0)
    return value.chunk(0) if value.num_chunks == 1 else value.combine_chunks()
