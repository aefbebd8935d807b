"""A source over a user function that yields rows."""

from __future__ import annotations

import collections.abc
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.topology.casting import cast_rows
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.source import SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.topology.tables import TABLES_TAKEN, as_table
from dask_elastic.vocab.errors import SchemaMismatch, SourceError, TopologyError

logger = logging.getLogger("dask_elastic.sources")

LONG_SKIP = 2.0
"""Seconds of skipping items after which there is a warning."""


class Iterable(ColumnSource):
    """Read the rows that a function yields; it runs on a worker.

    Parameters
    ----------
    factory : callable
        Called on the worker, without arguments or as `factory(instance, instances)`; returns an iterable of record
        batches, tables, dicts of columns, pandas or Polars frames, or other objects with Arrow's PyCapsule interface.
        It must yield the same rows on every call: a job that resumes from an offset calls it again and skips the rows
        before the offset, which takes as long as the function needs for them. For rows that arrive while the job
        runs, use `sources.Push`, which keeps them.
    schema : Schema, optional
        Names and types of the columns. Columns of items may be in another order, or of a type from which every value
        can be cast, such as large strings for strings. By default those of the first item, which all items must have.
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
        Number of instances that read at the same time. More than one needs `factory(instance, instances)`, so that
        each instance can yield its own rows.

    Raises
    ------
    TopologyError
        When the factory cannot be called, or an option is invalid.

    Notes
    -----
    The offset is the number of items read completely, and the number of rows read of the next item.

    Examples
    --------
    >>> def numbers():
    ...     yield {"a": [1, 2]}
    ...     yield {"a": [3]}
    >>> source = Iterable(numbers)
    >>> [(rows.num_rows, offset) for rows, offset in source.read(SourceContext())]
    [(2, (1, 0)), (1, (2, 0))]
    >>> [rows.to_pydict() for rows, offset in source.read(SourceContext(offset=(1, 0)))]
    [{'a': [3]}]
    """

    def __init__(
        self,
        factory: Callable[..., collections.abc.Iterable[Any]],
        *,
        schema: pa.Schema | None = None,
        rate: float | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
        batch_rows: int = 65_536,
        parallel: int = 1,
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack, parallel=parallel)
        _require_callable(factory)
        if not isinstance(batch_rows, int) or batch_rows < 1:
            raise TopologyError(f"sources.Iterable: batch_rows is {batch_rows!r}; give 1 or more.")
        if schema is not None and not isinstance(schema, pa.Schema):
            raise TopologyError(f"sources.Iterable: schema is {schema!r}; give a pyarrow Schema.")
        self.factory = factory
        self.batch_rows = batch_rows
        self.schema = None if schema is None else plain_schema(schema)
        self._shared = _takes_instances(factory, parallel, self._what())

    def _what(self) -> str:
        return str(getattr(self.factory, "__qualname__", None) or repr(self.factory))

    def check(self) -> None:
        """Check, if a schema was given, that the columns exist and that event time is a timestamp or date.

        Raises
        ------
        SourceError
            When they do not; names the column and the columns that exist. Without a schema, `read` raises it at the
            first item.
        """
        if self.schema is not None:
            self._names(self.schema)

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read the function's items, skipping those before the offset.

        Parameters
        ----------
        context : SourceContext
            The instance, the number of instances, and the offset to resume from.

        Yields
        ------
        tuple of RecordBatch and (int, int)
            Rows, and the offset after them.

        Raises
        ------
        SourceError
            When the function does not return an iterable, an item cannot become rows, the offset is of another kind
            of source, or as `check`.
        SchemaMismatch
            When an item does not have the schema.
        """
        offset = (0, 0) if context.offset is None else context.offset
        if not isinstance(offset, tuple) or len(offset) != 2:
            raise self._no_offset(offset)
        items_done, rows_done = offset
        schema = self.schema
        names: list[str] = []
        has_all = False
        most = self._rows_at_once(self.batch_rows, context.instances)
        for index, item in enumerate(_with_word(self._items(context), items_done, self._what())):
            if context.stopping():
                return
            if index < items_done and schema is not None:
                continue
            if names and isinstance(item, pa.RecordBatch) and 0 < item.num_rows <= most and item.schema.equals(schema):
                # Fast path for an item with the known schema: for small items the checks below dominate the cost.
                yield item if has_all else item.select(names), (index + 1, 0)
                continue
            table = self._table(item, index)
            if schema is None and table.num_rows:
                schema = plain_schema(table.schema)
            if schema is None or index < items_done:
                continue
            position = rows_done if index == items_done else 0
            wanted = self._names(schema)
            for rows in table.slice(position).to_batches(max_chunksize=most):
                position += rows.num_rows
                after = (index + 1, 0) if position == table.num_rows else (index, position)
                yield self._conform(schema, rows, index).select(wanted), after
            names, has_all = wanted, wanted == schema.names

    def _items(self, context: SourceContext) -> Iterator[object]:
        items = self.factory(context.instance, context.instances) if self._shared else self.factory()
        if not isinstance(items, collections.abc.Iterable):
            raise SourceError(
                f"{self!r}: {self._what()} returned {type(items).__name__}, which is not iterable; make it yield rows."
            )
        return iter(items)

    def _table(self, item: object, index: int) -> pa.Table:
        try:
            table = as_table(item)
        except ValueError as error:
            raise SourceError(f"{self!r}: item {index} of {self._what()} cannot become rows: {error}") from error
        if table is None:
            raise SourceError(
                f"{self!r}: {self._what()} yielded {type(item).__name__} as item {index}; make it yield {TABLES_TAKEN}."
            )
        return table

    def _conform(self, schema: pa.Schema, rows: pa.RecordBatch, index: int) -> pa.RecordBatch:
        where = f"{self!r}, item {index}"
        if self.schema is not None:
            return cast_rows(schema, rows, where)
        try:
            return check_schema(schema, rows, where)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"{error} The first item sets the schema, unless schema= is given.") from None


def _with_word(items: Iterator[object], skipped: int, what: str) -> Iterator[object]:
    """Yield the items; if skipping the first ones takes long, warn, since the job then seems to hang."""
    began, told = time.monotonic(), False
    for index, item in enumerate(items):
        if index < skipped and not told and time.monotonic() - began > LONG_SKIP:
            told = True
            logger.warning(
                "sources.Iterable: calls %s again and skips what it had yielded before the checkpoint, %d of %d items "
                "so far. The job reads no row until then. For rows that arrive while a job runs, use sources.Push.",
                what, index, skipped,
            )  # fmt: skip
        yield item


def _require_callable(factory: object) -> None:
    if not callable(factory):
        kind = type(factory).__name__
        raise TopologyError(f"sources.Iterable takes a function that returns an iterable, not {kind}; wrap it.")


def _takes_instances(factory: Callable[..., object], parallel: int, name: str) -> bool:
    """Return whether to call the factory with the instance and the number of instances."""
    try:
        signature = inspect.signature(factory)
    except ValueError:
        signature = inspect.Signature()  # Some builtins have no signature; they are called without arguments.
    if parallel == 1 and _binds(signature, 0):
        return False
    if _binds(signature, 2):
        return True
    if parallel > 1:
        raise TopologyError(
            f"sources.Iterable: parallel={parallel} needs a factory {name}(instance, instances); without these "
            "arguments every instance would yield the same rows."
        )
    raise TopologyError(
        f"sources.Iterable: {name}{signature} cannot be called; it must take no arguments, or (instance, instances)."
    )


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True
