"""A source over the queue that another job's sink writes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.source import SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import SourceError, TopologyError


class DaskQueue(ColumnSource):
    """Reads what a `sinks.DaskQueue` of another job on the same cluster puts on its queue.

    The rows go from the worker that made them straight to the one that reads them. They are read until the job that
    writes has ended; the source may be there before it.

    Parameters
    ----------
    name : str
        Name of the queue. One source reads it.
    schema : Schema
        Names and types of the columns.
    rate : float, optional
        At most so many rows per second go on; a full queue then holds the other job back.
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
    The offset is the number of batches read. A batch is acknowledged when it was passed on.

    Examples
    --------
    >>> DaskQueue("alerts", pa.schema({"plane": pa.string()}))
    DaskQueue('alerts')
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        *,
        rate: float | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack)
        if not isinstance(name, str) or not name:
            raise TopologyError(f"sources.DaskQueue: name is {name!r}; give the name of a queue.")
        if not isinstance(schema, pa.Schema) or not schema.names:
            raise TopologyError(f"sources.DaskQueue takes a pyarrow Schema with at least one column, not {schema!r}.")
        self.name = name
        self.schema = plain_schema(schema)

    def _what(self) -> str:
        return repr(self.name)

    def check(self) -> None:
        """Raise when columns are missing or event time is no time.

        Raises
        ------
        SourceError
            Names the column and those that are there.
        """
        self._names(self.schema)

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read the queue until the job that writes it has ended; see `Source.read`."""
        if context.queue is None:
            raise SourceError(f"{self!r} needs a cluster: there are no queues here.")
        names = self._names(self.schema)
        taken = context.offset if isinstance(context.offset, int) else 0
        for batch in context.queue(self.name):
            if context.stopping():
                return
            taken += 1
            rows = check_schema(self.schema, batch, f"rows of queue {self.name!r}")
            if rows.num_rows:
                yield rows.select(names), taken
