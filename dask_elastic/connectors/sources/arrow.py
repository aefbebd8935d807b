"""A source over an in-memory Arrow table, which is pickled with the topology."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

import pyarrow as pa

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.topology.pace import cut
from dask_elastic.topology.schema import check_schema
from dask_elastic.topology.source import SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.topology.tables import TABLES_TAKEN, as_table
from dask_elastic.vocab.errors import SourceError, TopologyError


class Arrow(ColumnSource):
    """Read an Arrow table.

    The table is pickled with the topology and sent to the workers, which suits a few megabytes. Write larger tables
    to a file that all workers can read, and use `sources.Parquet`.

    Parameters
    ----------
    rows : table, or sequence of RecordBatch
        The rows: a pyarrow Table or RecordBatch, a dict of columns, a pandas or Polars DataFrame,
        or another object with Arrow's PyCapsule interface. All batches of a sequence must have the same schema.
    columns : sequence of str, optional
        The columns to offer; all by default.
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
        Number of instances that read at the same time; each reads every `parallel`-th block of `batch_rows` rows.

    Raises
    ------
    TopologyError
        When `rows` has another type, or an option is invalid.
    SchemaMismatch
        When the batches have different schemas.

    Notes
    -----
    The offset is the number of the row before which the instance has read all of its blocks.

    Examples
    --------
    >>> source = Arrow(pa.table({"a": [1, 2, 3]}), batch_rows=2)
    >>> [(rows.num_rows, offset) for rows, offset in source.read(SourceContext())]
    [(2, 2), (1, 3)]
    >>> [rows.to_pydict() for rows, offset in source.read(SourceContext(offset=2))]
    [{'a': [3]}]
    """

    blocks = False

    def __init__(
        self,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        rate: float | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
        batch_rows: int = 65_536,
        parallel: int = 1,
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack, parallel=parallel, columns=columns)
        if not isinstance(batch_rows, int) or batch_rows < 1:
            raise TopologyError(f"sources.Arrow: batch_rows is {batch_rows!r}; give 1 or more.")
        self.batch_rows = batch_rows
        self.table = _table(rows)

    def _what(self) -> str:
        return f"<{self.table.num_rows} rows>"

    def columns_read(self, columns: tuple[str, ...] | None) -> Self:
        """Return a copy that holds only some columns, so that only these are sent to the workers.

        Parameters
        ----------
        columns : tuple of str or None
            The columns that operators use; None means all that the source offers.

        Returns
        -------
        Arrow
            The copy. If a column is missing it holds all columns, and its `check` and `read` raise.
        """
        pruned = super().columns_read(columns)
        with contextlib.suppress(SourceError):  # A column is missing: `check` and `read` raise.
            pruned.table = self.table.select(pruned._names(self.table.schema))
            pruned.columns = pruned._needed = None
        return pruned

    @property
    def divided(self) -> str:
        """How the rows are divided among the instances."""
        return f"blocks of {self.batch_rows} rows" if self.parallel > 1 else ""

    def _offered(self) -> pa.Schema:
        return self.table.schema

    def check(self) -> None:
        """Check that the columns exist and that event time is a timestamp or date.

        Raises
        ------
        SourceError
            When they do not; names the column and the columns that exist.
        """
        self._names(self.table.schema)

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read the instance's blocks.

        Parameters
        ----------
        context : SourceContext
            The instance, the number of instances, and the offset to resume from.

        Yields
        ------
        tuple of RecordBatch and int
            Rows, and the offset after them.

        Raises
        ------
        SourceError
            When the offset is of another kind of source, or as `check`.
        """
        table = self.table.select(self._names(self.table.schema))
        done = 0 if context.offset is None else context.offset
        if not isinstance(done, int):
            raise self._no_offset(done)
        most = self._rows_at_once(self.batch_rows, context.instances)
        for start in range(context.instance * self.batch_rows, len(table), context.instances * self.batch_rows):
            position = max(start, done)
            for chunk in table.slice(position, max(0, start + self.batch_rows - position)).to_batches():
                for rows in cut(chunk, most):
                    if context.stopping():
                        return
                    position += rows.num_rows
                    yield rows, position


def _table(rows: object) -> pa.Table:
    if isinstance(rows, Sequence) and rows and all(isinstance(batch, pa.RecordBatch) for batch in rows):
        schema = rows[0].schema
        batches = [check_schema(schema, batch, f"sources.Arrow, batch {index}") for index, batch in enumerate(rows)]
        rows = pa.Table.from_batches(batches)
    try:
        table = as_table(rows)
    except ValueError as error:
        raise TopologyError(f"sources.Arrow: the {type(rows).__name__} cannot become rows: {error}") from error
    if table is None:
        raise TopologyError(
            f"sources.Arrow takes {TABLES_TAKEN}, or a list of RecordBatches, not {type(rows).__name__}."
        )
    return table.replace_schema_metadata(None).unify_dictionaries()
