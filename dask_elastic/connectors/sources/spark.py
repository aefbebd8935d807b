"""A source to which Spark hands its micro-batches over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from dask.utils import format_bytes, parse_bytes

from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.source import SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import SourceError, TopologyError


class Spark(ColumnSource):
    """Takes the epochs that a Spark query hands over with the format "dask_elastic".

    Rows come from Spark's Python workers straight to the Dask workers where the source's instances are, wait there
    until Spark commits their micro-batch, and are then read, in the order of the commits.

    Parameters
    ----------
    schema : pyarrow.Schema or pyspark.sql.types.StructType
        Names and types of the columns, such as `frame.schema`. Rows may come with their columns in another order.
    rate : float, optional
        At most so many rows per second go on; full queues then hold Spark back.
    event_time : str, optional
        The column that says when each row happened; of a timestamp or date type.
    slack : str, float or timedelta, optional
        How much older than the newest row so far a row may be that is not late, such as "5 min"; without it, nothing.
    parallel : int, default 1
        How many instances read at the same time, each on the rows of some of Spark's partitions.
    epochs : int, default 2
        How many committed micro-batches may wait at an instance. When it is as many, Spark's next commit waits.
    staging : str or int, default "256MiB"
        How many bytes of rows an instance keeps in memory. When committed rows fill it, Spark's writers wait; what a
        single micro-batch has beyond it goes to the worker's disk until the commit.

    Raises
    ------
    TopologyError
        When the schema is none, or an option cannot be meant.

    Notes
    -----
    Spark's instants carry the time zone of its session as their type; here any zone fits a column with a zone, since
    the moments are the same.

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
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack, parallel=parallel)
        found = _arrow_schema(schema)
        if not found.names:
            raise TopologyError("sources.Spark takes a schema with at least one column.")
        if len(set(found.names)) < len(found.names):
            raise TopologyError(f"sources.Spark: a column is there twice in {', '.join(found.names)}; rename it.")
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise TopologyError(
                f"sources.Spark: epochs is {epochs!r}; give how many micro-batches may wait, at least 1."
            )
        self.schema = plain_schema(found)
        self.epochs = epochs
        self.staging_bytes = _bytes(staging)

    def _what(self) -> str:
        return f"<{', '.join(self.schema.names)}>"

    def __repr__(self) -> str:
        """Return the source as it could be written."""
        options = [] if self.epochs == 2 else [f"epochs={self.epochs}"]
        if self.staging_bytes != 256 * 2**20:
            options.append(f"staging={format_bytes(self.staging_bytes).replace(' ', '')!r}")
        return ", ".join([super().__repr__()[:-1], *options]) + ")"

    def check(self) -> None:
        """Raise when columns are missing or event time is no time.

        Raises
        ------
        SourceError
            Names the column and those that are there.
        """
        self._names(self.schema)

    def accept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Bring rows of Spark's into the source's schema.

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
        return check_schema(self.schema, _with_zones(self.schema, rows), "rows handed over to sources.Spark")

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Take the rows of committed epochs until the source is ended; see `Source.read`."""
        if context.mailbox is None:
            raise SourceError("sources.Spark has nobody to take rows from: it must run inside a job on a cluster.")
        names = self._names(self.schema)
        taken = context.offset if isinstance(context.offset, int) else 0
        for batch in context.mailbox:
            if context.stopping():
                return
            taken += 1
            rows = self.accept(batch)
            if rows.num_rows:
                yield rows.select(names), taken


def _arrow_schema(schema: Any) -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    if hasattr(schema, "fieldNames"):
        from pyspark.sql.pandas.types import to_arrow_schema

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
    """Give the instants of rows the time zones of a schema; the moments stay."""
    types = {field.name: field.type for field in schema}
    for index, field in enumerate(rows.schema):
        kind = _with_zone(field.type, types.get(field.name, field.type))
        if kind != field.type:
            rows = rows.set_column(index, field.with_type(kind), rows.column(index).cast(kind))
    return rows


def _with_zone(found: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return a type with the zones of another, wherever both have instants of one unit."""
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        moved = None not in (found.tz, wanted.tz) and found.unit == wanted.unit
        return wanted if moved else found
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
