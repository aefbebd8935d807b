"""A source over the partitions of a Dask DataFrame or Bag, which the cluster computes one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self

import pyarrow as pa

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.connectors.sources.partition_graph import PartitionGraph
from dask_elastic.connectors.sources.partition_reader import PartitionReader, computed_here
from dask_elastic.topology.pace import cut
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.source import SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import SchemaMismatch, SourceError, TopologyError


class DaskPartitions(ColumnSource):
    """Read the partitions of a Dask DataFrame or Bag; `from_dask` makes one.

    Parameters
    ----------
    collection : dask.dataframe.DataFrame or dask.bag.Bag
        The collection.
    schema : Schema or None
        Names and types of the columns.
    batch_rows : int
        Largest number of rows that are read at once.
    **options : object
        The options of `ColumnSource`.

    Raises
    ------
    TopologyError
        When an option is invalid.

    Examples
    --------
    >>> import dask.bag
    >>> DaskPartitions(dask.bag.from_sequence([{"n": 1}]), schema=None, batch_rows=100, rate=5)
    DaskPartitions(<Bag of 1 partitions>, rate=5)
    """

    def __init__(self, collection: Any, *, schema: pa.Schema | None, batch_rows: int, **options: Any):
        super().__init__(**options)
        if not isinstance(batch_rows, int) or batch_rows < 1:
            raise TopologyError(f"sources.from_dask: batch_rows is {batch_rows!r}; give 1 or more.")
        if schema is not None and not isinstance(schema, pa.Schema):
            raise TopologyError(f"sources.from_dask: schema is {schema!r}; give a pyarrow Schema.")
        self._is_frame = _is_frame(collection)
        self._kind = f"<{type(collection).__name__} of {collection.npartitions} partitions>"
        self._count: int = collection.npartitions
        self._given = None if schema is None else plain_schema(schema)
        # Types of a frame's columns; null if only the rows tell the type.
        self._types = _types(collection) if self._is_frame and schema is None else self._given
        self.batch_rows = batch_rows
        self._collection: Any = collection
        self._graph = self._selected()

    def _what(self) -> str:
        return self._kind

    def __getstate__(self) -> dict[str, Any]:
        # The graph is sent instead of the collection.
        return {**self.__dict__, "_collection": None}

    def _selected(self) -> PartitionGraph:
        names = None
        with contextlib.suppress(SourceError):  # A column is missing: `check` raises.
            names = self._names(self._checked()) if self._is_frame else None
        return PartitionGraph(self._collection, names, self._given)

    def _checked(self) -> pa.Schema:
        """Return the types with that of event time assumed to be right if it is unknown."""
        assert self._types is not None, "a frame has names"
        times = pa.timestamp("us")
        assumed = [
            pa.field(field.name, times) if field.name == self.event_time and pa.types.is_null(field.type) else field
            for field in self._types
        ]
        return pa.schema(assumed)

    def columns_read(self, columns: tuple[str, ...] | None) -> Self:
        """Return a copy that computes only some columns, and the column of event time.

        Parameters
        ----------
        columns : tuple of str or None
            The columns that operators use; None means all that the source offers.

        Returns
        -------
        DaskPartitions
            The copy. If a column is missing, its `check` raises.
        """
        pruned = super().columns_read(columns)
        pruned._collection = self._collection
        pruned._graph = pruned._selected()
        return pruned

    def _offered(self) -> pa.Schema | None:
        known = self._types is not None and not any(pa.types.is_null(field.type) for field in self._types)
        return self._types if known else None

    def check(self) -> None:
        """Check that the columns exist and that event time is a timestamp or date, as far as that is known.

        Raises
        ------
        SourceError
            When they do not; names the column and the columns that exist.
        """
        if self._types is not None:
            self._names(self._checked())

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read the instance's partitions.

        Parameters
        ----------
        context : SourceContext
            The instance, the number of instances, the offset to resume from, and the cluster.

        Yields
        ------
        tuple of RecordBatch and (int, int)
            Rows, and the offset after them: the partition to read next, and the number of its rows that were read.

        Raises
        ------
        SourceError
            When a partition cannot be computed, the offset is of another kind of source, or as `check`.
        SchemaMismatch
            When a partition has other columns or types than the schema or the partitions before it.
        """
        offset = (0, 0) if context.offset is None else context.offset
        if not isinstance(offset, tuple) or len(offset) != 2:
            raise self._no_offset(offset)
        done, skipped = offset
        schema = self._offered()
        most = self._rows_at_once(self.batch_rows, context.instances)
        mine = range(context.instance, self._count, context.instances)
        for number, table in self._tables([one for one in mine if one >= done], context):
            if schema is None and table.num_rows:
                schema = plain_schema(table.schema)
                self._require_event_time(schema)
            if schema is None:
                continue
            names = table.schema.names if self._is_frame else self._names(schema)
            expected = pa.schema([schema.field(name) for name in names]) if self._is_frame else schema
            position = skipped if number == done else 0
            for chunk in table.slice(position).to_batches():
                rows = self._conform(expected, chunk, number).select(names)
                for part in cut(rows, most):
                    if context.stopping():
                        return
                    position += part.num_rows
                    yield part, (number + 1, 0) if position == table.num_rows else (number, position)

    def _tables(self, numbers: Sequence[int], context: SourceContext) -> Iterator[tuple[int, pa.Table]]:
        if context.client is None:
            yield from computed_here(self._graph, numbers)
        elif numbers:
            with ExitStack() as stack:
                client = stack.enter_context(context.client())
                yield from PartitionReader(self._graph, client, context.stopping, repr(self)).read(numbers)

    def _conform(self, schema: pa.Schema, rows: pa.RecordBatch, number: int) -> pa.RecordBatch:
        try:
            return check_schema(schema, rows, f"{self!r}, partition {number}")
        except SchemaMismatch as error:
            source = "the collection's meta" if self._offered() else "the first partition with rows"
            hint = "" if self._given is not None else f" The types are those of {source}, unless schema= is given."
            raise SchemaMismatch(f"{error}{hint}") from None


def from_dask(
    collection: Any,
    *,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
    rate: float | None = None,
    event_time: str | None = None,
    slack: Duration | None = None,
    batch_rows: int = 65_536,
    parallel: int = 1,
) -> DaskPartitions:
    """Read the partitions of a Dask DataFrame or Bag in order.

    The cluster of the job computes the partitions, not the client: each one when the partition before it is being
    processed. At most two partitions per instance are on the cluster, and one at the source. What several partitions
    need, such as the input of a shuffle, is computed once and kept until the source has ended. The computation uses the
    Dask threads of the workers, beside the cores of the job.

    Parameters
    ----------
    collection : dask.dataframe.DataFrame or dask.bag.Bag
        The collection. The index of a DataFrame is left out: call `reset_index` to read it. The items of a Bag are
        dicts, one per row.
    columns : sequence of str, optional
        The columns to offer; all by default. Of a DataFrame, only the columns that operators use are computed.
    schema : Schema, optional
        Names and types of the columns. By default the types are those of the DataFrame's dtypes; those of Bags, and of
        DataFrames with dtypes that allow several types, are those of the first partition with rows.
    rate : float, optional
        Largest number of rows per second over all instances; no limit by default.
    event_time : str, optional
        The column with the event time of each row; of a timestamp or date type. Times without a zone
        count as UTC.
    slack : str, float or timedelta, optional
        How far a row's event time may lie behind the newest seen so far before the row counts as late, such as
        "5 min"; 0 by default.
    batch_rows : int, default 65536
        Largest number of rows that are read at once; with a rate, at most 0.1 s of rows. Batches that wait are joined,
        so functions may get more.
    parallel : int, default 1
        Number of instances that read at the same time; each reads every `parallel`-th partition.

    Returns
    -------
    DaskPartitions
        The source.

    Raises
    ------
    TopologyError
        When `collection` is neither a DataFrame nor a Bag, or an option is invalid.

    Notes
    -----
    The offset is the number of the partition to read next, and the number of its rows that were read. A job that
    resumes computes that partition again, so it must have the same rows in the same order.

    A persisted collection is read where it is. Keep it and its client until the first rows arrive; from then on the
    source keeps it.

    Examples
    --------
    >>> import dask.bag
    >>> source = from_dask(dask.bag.from_sequence([{"n": 1}, {"n": 2}, {"n": 3}], npartitions=2))
    >>> [(rows["n"].to_pylist(), offset) for rows, offset in source.read(SourceContext())]
    [([1, 2], (1, 0)), ([3], (2, 0))]
    """
    options = {"columns": columns, "rate": rate, "event_time": event_time, "slack": slack, "parallel": parallel}
    if not (_is_frame(collection) or _is_bag(collection)):
        raise TopologyError(
            f"sources.from_dask takes a Dask DataFrame or Bag, not {type(collection).__name__}. Call to_frame() of a "
            "Series, to_dask_dataframe() of an array, and dask.dataframe.from_delayed for delayed objects; use "
            "sources.Arrow for a table in memory."
        )
    return DaskPartitions(collection, schema=schema, batch_rows=batch_rows, **options)


def _is_frame(collection: object) -> bool:
    return _is_dask(collection) and hasattr(getattr(collection, "_meta", None), "columns")


def _is_bag(collection: object) -> bool:
    return _is_dask(collection) and type(collection).__module__.startswith("dask.bag") and hasattr(collection, "map")


def _is_dask(collection: object) -> bool:
    return hasattr(collection, "__dask_graph__") and hasattr(collection, "npartitions")


def _types(frame: Any) -> pa.Schema:
    """Return the types of a frame's columns by their dtypes; null where the rows decide."""
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names) or not names:
        raise TopologyError(
            f"sources.from_dask: the columns are {names!r}; rename them so that each is a string that occurs once."
        )
    found = pa.Schema.from_pandas(frame._meta, preserve_index=False)
    decided = [str(dtype) not in ("object", "category") for dtype in frame.dtypes]
    return plain_schema(
        pa.schema(
            [field if sure else pa.field(field.name, pa.null()) for field, sure in zip(found, decided, strict=True)]
        )
    )
