"""A source that reads the queue to which another job's sink writes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.source import Replay, SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import SourceError, TopologyError


class DaskQueue(ColumnSource):
    """Read the queue to which a `sinks.DaskQueue` of another job on the same cluster writes.

    Rows go from the worker that produced them directly to the worker that reads them. The source ends when the writing
    job has ended; it may be started before that job.

    In a job with checkpoints, batches flow at once, and are written to the folder of the checkpoints before the queue
    forgets them. A restart reads them there again, each once.

    Parameters
    ----------
    name : str
        Name of the queue. Only one source may read it.
    schema : Schema
        Names and types of the columns.
    rate : float, optional
        Largest number of rows per second; no limit by default. A full queue slows the writing job down.
    event_time : str, optional
        The column with the event time of each row; of a timestamp or date type. Times without a zone
        count as UTC.
    slack : str, float or timedelta, optional
        How far a row's event time may lie behind the newest seen so far before the row counts as late, such as
        "5 min"; 0 by default.
    replay : {"at-most-once"}, optional
        Batches are not written to the folder of the checkpoints: a restart loses those after the newest checkpoint.

    Raises
    ------
    TopologyError
        When `schema` is not a pyarrow Schema, or an option is invalid.

    Notes
    -----
    The offset is the number of batches read, counted from the first one of the job.

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
        replay: Replay | None = None,
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack, replay=replay)
        if not isinstance(name, str) or not name:
            raise TopologyError(f"sources.DaskQueue: name is {name!r}; give the name of a queue.")
        if not isinstance(schema, pa.Schema) or not schema.names:
            raise TopologyError(f"sources.DaskQueue takes a pyarrow Schema with at least one column, not {schema!r}.")
        self.name = name
        self.schema = plain_schema(schema)
        self.replayable = self.spooled = replay is None

    def _what(self) -> str:
        return repr(self.name)

    def check(self) -> None:
        """Check that the columns exist and that event time is a timestamp or date.

        Raises
        ------
        SourceError
            When they do not; names the column and the columns that exist.
        """
        self._names(self.schema)

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read the queue until the writing job has ended.

        Parameters
        ----------
        context : SourceContext
            Gives access to the cluster's queues.

        Yields
        ------
        tuple of RecordBatch and int
            Rows, and the offset after them.

        Raises
        ------
        SourceError
            Outside a cluster, or as `check`.
        SchemaMismatch
            When rows of the queue do not have the source's schema.
        """
        if context.queue is None:
            raise SourceError(f"{self!r} can only be read by a job on a cluster; elsewhere there are no queues.")
        names = self._names(self.schema)
        taken = context.offset if isinstance(context.offset, int) else 0
        for batch in context.queue(self.name):
            if context.stopping():
                return
            taken += 1
            rows = check_schema(self.schema, batch, f"rows of queue {self.name!r}")
            if rows.num_rows:
                yield rows.select(names), taken if context.position is None else context.position()
