"""A source whose rows a program sends with `job.send`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.topology.casting import cast_rows
from dask_elastic.topology.schema import plain_schema
from dask_elastic.topology.source import Convert, Replay, SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import SourceError, TopologyError


class Push(ColumnSource):
    """Read the rows that a program sends with `job.send`.

    In a job with checkpoints, rows flow at once, and are written to the folder of the checkpoints before they are
    acknowledged (`job.flush`, ``job.send(..., wait=True)``). A restart reads them there again, and the client sends
    again what was not acknowledged: no row is lost, none is processed twice, and the rows of one client stay in order.

    Parameters
    ----------
    schema : Schema
        Names and types of the columns. Sent rows may have them in another order, and are cast to these types.
    rate : float, optional
        Largest number of rows per second; no limit by default. A full mailbox blocks `job.send`.
    event_time : str, optional
        The column with the event time of each row; of a timestamp or date type. Times without a zone
        count as UTC.
    slack : str, float or timedelta, optional
        How far a row's event time may lie behind the newest seen so far before the row counts as late, such as
        "5 min"; 0 by default.
    replay : {"at-most-once"}, optional
        Rows are not written to the folder of the checkpoints: a restart loses those after the newest checkpoint.

    Raises
    ------
    TopologyError
        When `schema` is not a pyarrow Schema, or an option is invalid.

    Notes
    -----
    The offset is the number of sent batches, counted from the first one of the job.

    Examples
    --------
    >>> source = Push(pa.schema({"a": pa.int64()}))
    >>> sent = [pa.RecordBatch.from_pydict({"a": [1, 2]})]
    >>> [(rows.num_rows, offset) for rows, offset in source.read(SourceContext(mailbox=iter(sent)))]
    [(2, 1)]
    """

    pushed = True

    def __init__(
        self,
        schema: pa.Schema,
        *,
        rate: float | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
        replay: Replay | None = None,
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack, replay=replay)
        if not isinstance(schema, pa.Schema) or not schema.names:
            given = "one without columns" if isinstance(schema, pa.Schema) else repr(schema)
            raise TopologyError(f"sources.Push takes a pyarrow Schema with at least one column, not {given}.")
        if len(set(schema.names)) < len(schema.names):
            raise TopologyError(f"sources.Push: a column name occurs twice in {', '.join(schema.names)}; rename one.")
        self.schema = plain_schema(schema)
        self.sent_schema = self.schema
        self.replayable = self.spooled = replay is None

    def _what(self) -> str:
        return f"<{', '.join(self.schema.names)}>"

    def check(self) -> None:
        """Check that the columns exist and that event time is a timestamp or date.

        Raises
        ------
        SourceError
            When they do not; names the column and the columns that exist.
        """
        self._names(self.schema)

    def accept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert sent rows to the source's schema; the client calls it before sending, the source after.

        Parameters
        ----------
        rows : RecordBatch
            The rows, with all columns of the schema.

        Returns
        -------
        RecordBatch
            The same rows, with the columns in the order and of the types of the schema.

        Raises
        ------
        SchemaMismatch
            When columns are missing or unexpected, or cannot be cast; names them.
        """
        return cast_rows(self.schema, rows, "rows sent to sources.Push")

    def converts(self) -> Convert:
        """Return what `read` does to each batch: `accept`, and the choice of the columns that are read.

        Returns
        -------
        callable
            Takes a batch, and returns the rows to send.

        Raises
        ------
        SourceError
            As `check`.
        """
        names = self._names(self.schema)
        return lambda rows: self.accept(rows).select(names)

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read batches from the mailbox until it ends.

        Parameters
        ----------
        context : SourceContext
            Holds the mailbox.

        Yields
        ------
        tuple of RecordBatch and int
            Rows, and the offset after them: without checkpoints, the number of batches taken from the mailbox.

        Raises
        ------
        SourceError
            When there is no mailbox, or as `check`.
        SchemaMismatch
            As `accept`.
        """
        if context.mailbox is None:
            raise SourceError(f"{self!r} has no mailbox to read: it can only be read by a job on a cluster.")
        convert = self.converts()
        taken = context.offset if isinstance(context.offset, int) else 0
        for batch in context.mailbox:
            if context.stopping():
                return
            taken += 1
            rows = convert(batch)
            if rows.num_rows:
                yield rows, taken if context.position is None else context.position()
