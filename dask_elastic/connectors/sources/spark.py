"""A source that receives the micro-batches of a Spark query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import pyarrow as pa
from dask.utils import format_bytes, parse_bytes

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.source import Replay, SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.topology.variant_columns import variant_columns
from dask_elastic.vocab.errors import SourceError, TopologyError

OnReset = Literal["fail", "accept"]


class Spark(ColumnSource):
    """Read the epochs that a Spark query writes with the format "dask_elastic".

    Spark's Python workers send rows directly to the Dask workers that run the source's instances. The rows are staged
    there until Spark commits their epoch, and are then read in the order of the commits.

    Parameters
    ----------
    schema : pyarrow.Schema or pyspark.sql.types.StructType
        Names and types of the columns, such as `frame.schema`. Rows may have them in another order.
    rate : float, optional
        Largest number of rows per second; no limit by default. Full queues block Spark's commits.
    event_time : str, optional
        The column with the event time of each row; of a timestamp or date type. Times without a zone
        count as UTC.
    slack : str, float or timedelta, optional
        How far a row's event time may lie behind the newest seen so far before the row counts as late, such as
        "5 min"; 0 by default.
    parallel : int, default 1
        Number of instances that read at the same time, each the rows of some of Spark's partitions.
    epochs : int, default 2
        Number of committed epochs that may wait at an instance. When so many wait, Spark's next commit blocks.
    staging : str or int, default "256MiB"
        Bytes of rows that an instance keeps in memory. When committed rows fill it, Spark's writers block. If a single
        epoch exceeds it, the rest of that epoch is spilled to the worker's disk until the commit.
    on_reset : str, default "fail"
        What happens when a streaming query does not continue where this job has its rows from: it skips epochs,
        because the job was submitted again, or repeats its input, because its checkpoint was deleted. "fail" fails
        the query with `SourceReset`; "accept" takes its rows.
    replay : {"at-most-once"}, optional
        Jobs with checkpoints write each epoch to the folder of the checkpoints before Spark's commit returns, so that
        no crash loses it. This leaves that out: a restart loses the rows after the newest checkpoint.

    Raises
    ------
    TopologyError
        When the schema is of another type, or an option is invalid.

    Notes
    -----
    The type of Spark's timestamps carries the time zone of its session. A column with a time zone accepts timestamps
    of any zone, because they are the same instants.

    Examples
    --------
    >>> source = Spark(pa.schema({"plane": pa.string(), "delay": pa.int16()}), parallel=2)
    >>> source
    Spark(<plane, delay>, parallel=2)
    >>> source.accept(pa.record_batch({"delay": pa.array([3], pa.int16()), "plane": ["N10156"]})).schema.names
    ['plane', 'delay']
    """

    pushed = True

    def __init__(
        self,
        schema: Any,
        *,
        rate: float | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
        parallel: int = 1,
        epochs: int = 2,
        staging: str | int = "256MiB",
        on_reset: OnReset = "fail",
        replay: Replay | None = None,
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack, parallel=parallel, replay=replay)
        found = _arrow_schema(schema)
        if not found.names:
            raise TopologyError("sources.Spark takes a schema with at least one column.")
        if len(set(found.names)) < len(found.names):
            raise TopologyError(f"sources.Spark: a column name occurs twice in {', '.join(found.names)}; rename one.")
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise TopologyError(
                f"sources.Spark: epochs is {epochs!r}; give the number of epochs that may wait, 1 or more."
            )
        if on_reset not in get_args(OnReset):
            raise TopologyError(f'sources.Spark: on_reset is {on_reset!r}; give "fail" or "accept".')
        self.schema = plain_schema(found)
        self.replayable = replay is None
        self.on_reset = on_reset
        self.epochs = epochs
        self.staging_bytes = _bytes(staging)

    def _what(self) -> str:
        return f"<{', '.join(self.schema.names)}>"

    def __repr__(self) -> str:
        """Return the call that creates the source, as text."""
        options = [] if self.epochs == 2 else [f"epochs={self.epochs}"]
        if self.staging_bytes != 256 * 2**20:
            options.append(f"staging={format_bytes(self.staging_bytes).replace(' ', '')!r}")
        options += [f"on_reset={self.on_reset!r}"] if self.on_reset != "fail" else []
        return ", ".join([super().__repr__()[:-1], *options]) + ")"

    def check(self) -> None:
        """Check that the columns exist and that event time is a timestamp or date.

        Raises
        ------
        SourceError
            When they do not; names the column and the columns that exist.
        """
        self._names(self.schema)

    def accept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert Spark's rows to the source's schema.

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
            When columns are missing, unexpected or of another type; names them.
        """
        return check_schema(self.schema, _with_zones(self.schema, rows), "rows sent to sources.Spark")

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read the rows of committed epochs until the source is ended.

        Parameters
        ----------
        context : SourceContext
            Holds the epochs.

        Yields
        ------
        tuple of RecordBatch and (int, int)
            Rows, and the offset after them: the number of the epoch in the job's ledger up to which all rows were
            read, and how many rows of the next one.

        Raises
        ------
        SourceError
            When there are no epochs, or as `check`.
        SchemaMismatch
            As `accept`.
        """
        if context.epochs is None:
            raise SourceError(f"{self!r} has no epochs to read: it can only be read by a job on a cluster.")
        names = self._names(self.schema)
        for batch, offset in context.epochs(context.offset):
            if context.stopping():
                return
            rows = self.accept(batch)
            if rows.num_rows:
                yield rows.select(names), offset


def _arrow_schema(schema: Any) -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    if hasattr(schema, "fieldNames"):
        from pyspark.sql.pandas.types import to_arrow_schema

        variants = variant_columns(schema)
        if variants:
            raise TopologyError(
                f"sources.Spark: columns {', '.join(variants)} contain variants, which a job has no type for; convert "
                "them with to_json or variant_get."
            )
        return to_arrow_schema(schema, timezone="UTC")
    raise TopologyError(
        f"sources.Spark takes a pyarrow Schema or Spark's StructType, such as frame.schema, not {schema!r}."
    )


def _bytes(staging: str | int) -> int:
    try:
        found = int(parse_bytes(str(staging)))
    except ValueError as error:
        raise TopologyError(f'sources.Spark: staging is {staging!r}; give bytes, or a text like "256MiB".') from error
    if found <= 0:
        raise TopologyError(f"sources.Spark: staging is {staging!r}; give a size above 0.")
    return found


def _with_zones(schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Cast the timestamps of rows to the time zones of a schema; the instants stay the same."""
    types = {field.name: field.type for field in schema}
    for index, field in enumerate(rows.schema):
        kind = _with_zone(field.type, types.get(field.name, field.type))
        if kind != field.type:
            rows = rows.set_column(index, field.with_type(kind), rows.column(index).cast(kind))
    return rows


def _with_zone(found: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return the type `found` with the time zones of `wanted`, where both are zoned timestamps of one unit."""
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        same_instants = None not in (found.tz, wanted.tz) and found.unit == wanted.unit
        return wanted if same_instants else found
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        types = {wanted.field(index).name: wanted.field(index).type for index in range(wanted.num_fields)}
        fields = [found.field(index) for index in range(found.num_fields)]
        return pa.struct([each.with_type(_with_zone(each.type, types.get(each.name, each.type))) for each in fields])
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        item = found.value_field
        return pa.list_(item.with_type(_with_zone(item.type, wanted.value_type)))
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        key, item = found.key_field, found.item_field
        return pa.map_(
            key.with_type(_with_zone(key.type, wanted.key_type)),
            item.with_type(_with_zone(item.type, wanted.item_type)),
        )
    return found
