"""A source that a program feeds through its job."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.source import SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import SourceError, TopologyError


class Push(ColumnSource):
    """Takes the rows that `job.send` delivers.

    Such rows are nowhere else: they cannot be read again after a failure, unless the program sends them again.

    Parameters
    ----------
    schema : Schema
        Names and types of the columns. Rows that are sent may have them in another order.
    rate : float, optional
        At most so many rows per second go on; a full mailbox then holds the sender back.
    event_time : str, optional
        The column that says when each row happened; of a timestamp or date type.
    slack : str, float or timedelta, optional
        How much older than the newest row so far a row may be that is not late, such as "5 min"; without it, nothing.

    Raises
    ------
    TopologyError
        When the schema is none, or an option cannot be meant.

    Notes
    -----
    The offset is the number of batches taken from the mailbox.

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
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack)
        if not isinstance(schema, pa.Schema) or not schema.names:
            raise TopologyError(f"sources.Push takes a pyarrow Schema with at least one column, not {schema!r}.")
        if len(set(schema.names)) < len(schema.names):
            raise TopologyError(f"sources.Push: a column is there twice in {', '.join(schema.names)}; rename it.")
        self.schema = plain_schema(schema)

    def _what(self) -> str:
        return f"<{', '.join(self.schema.names)}>"

    def check(self) -> None:
        """Raise when columns are missing or event time is no time.

        Raises
        ------
        SourceError
            Names the column and those that are there.
        """
        self._names(self.schema)

    def accept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Bring rows that are sent into the source's schema; whoever sends can ask before.

        Parameters
        ----------
        rows : RecordBatch
            The rows, with all columns of the schema.

        Returns
        -------
        RecordBatch
            The same rows, with the columns in the order of the schema.

        Raises
        ------
        SchemaMismatch
            Says how the rows differ.
        """
        return check_schema(self.schema, rows, "rows sent to sources.Push")

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Take batches from the mailbox until it ends; see `Source.read`."""
        if context.mailbox is None:
            raise SourceError("sources.Push has no mailbox to read: it must run inside a job that can send to it.")
        names = self._names(self.schema)
        taken = context.offset if isinstance(context.offset, int) else 0
        for batch in context.mailbox:
            if context.stopping():
                return
            taken += 1
            rows = self.accept(batch)
            if rows.num_rows:
                yield rows.select(names), taken
