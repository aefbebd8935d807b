"""A source that reads topics of Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa

from dask_elastic.connectors.libraries import lacking
from dask_elastic.connectors.sources.column_source import ColumnSource
from dask_elastic.connectors.sources.kafka_partitions import KafkaOffset, KafkaPartitions
from dask_elastic.connectors.sources.kafka_rows import METADATA, MessageRows
from dask_elastic.topology.schema import plain_schema
from dask_elastic.topology.source import SourceContext
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import SourceError, TopologyError

Start = Literal["earliest", "latest"]


class Kafka(ColumnSource):
    """Read topics of Kafka; needs the extra `kafka`.

    Each instance reads its share of the partitions: no consumer group assigns them. Offsets are part of the job's
    checkpoints and are never committed to Kafka, so that a restarted job reads exactly the messages after the
    checkpoint.

    Parameters
    ----------
    topics : str or sequence of str
        The topics.
    servers : str
        The brokers to begin with, such as "broker1:9092,broker2:9092".
    schema : Schema, optional
        The fields of the JSON object that each value contains; other fields are ignored, missing ones are null, and a
        message without a value has only nulls. By default, the source has a column `value` of bytes.
    metadata : sequence of str, optional
        Further columns: "key" (bytes), "topic", "partition", "offset" and "timestamp".
    start : {"earliest", "latest"}, default "earliest"
        Where a job begins that has no checkpoint.
    bounded : bool, default False
        Whether to end after the messages that the topics have when reading begins.
    rate : float, optional
        Largest number of rows per second over all instances; no limit by default.
    event_time : str, optional
        The column with the event time of each row; of a timestamp or date type. Times without a zone
        count as UTC. "timestamp" takes the messages' own
        timestamps, if the schema has no such field.
    slack : str, float or timedelta, optional
        How far a row's event time may lie behind the newest seen so far before the row counts as late, such as
        "5 min"; 0 by default.
    batch_rows : int, default 10_000
        Largest number of rows that are read at once; with a rate, at most 0.1 s of rows. Batches that wait are joined,
        so functions may get more.
    parallel : int, default 1
        Number of instances that read at the same time; more than partitions have nothing to read.
    options : mapping, optional
        Further options of the client, librdkafka, such as {"security.protocol": "SASL_SSL"}.

    Raises
    ------
    TopologyError
        When an option is invalid.

    Notes
    -----
    Options are stored with the topology, also in checkpoints; so are passwords in them.

    Partitions that are added to a topic are read after the next restart of the job. Messages that retention has deleted
    before they were read are an error. In a compacted topic, a restarted job does not see messages that were compacted
    meanwhile; state that it computes from the others is the same if a later message of a key replaces the earlier one.

    The offset holds the next offset of each partition and, if the instance reads several, which messages come next:
    after a restart the rows come in the same order up to there. An empty batch tells the engine this offset before the
    rows.

    Examples
    --------
    >>> Kafka("delays", "broker:9092", schema=pa.schema({"plane": pa.string(), "delay": pa.int16()}), parallel=2)
    Kafka('delays', parallel=2)
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        servers: str,
        *,
        schema: pa.Schema | None = None,
        metadata: Sequence[str] = (),
        start: Start = "earliest",
        bounded: bool = False,
        rate: float | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
        batch_rows: int = 10_000,
        parallel: int = 1,
        options: Mapping[str, Any] | None = None,
    ):
        super().__init__(rate=rate, event_time=event_time, slack=slack, parallel=parallel)
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise TopologyError(f"sources.Kafka: topics is {topics!r}; give the name of a topic, or a list of names.")
        if not isinstance(servers, str) or not servers:
            raise TopologyError(f'sources.Kafka: servers is {servers!r}; give brokers, such as "broker:9092".')
        if schema is not None and (not isinstance(schema, pa.Schema) or not schema.names):
            raise TopologyError(f"sources.Kafka: schema is {schema!r}; give a pyarrow Schema with at least one column.")
        if start not in get_args(Start):
            raise TopologyError(f'sources.Kafka: start is {start!r}; give "earliest" or "latest".')
        if not isinstance(batch_rows, int) or batch_rows < 1:
            raise TopologyError(f"sources.Kafka: batch_rows is {batch_rows!r}; give 1 or more.")
        self.topics = names
        self.servers = servers
        self.start = start
        self.bounded = bounded
        self.batch_rows = batch_rows
        self.options = dict(options or {})
        self._json = None if schema is None else plain_schema(schema)
        self._metadata = self._checked_metadata(tuple(metadata))
        self.schema = MessageRows(self._json, self._metadata, "").schema

    def _checked_metadata(self, names: tuple[str, ...]) -> tuple[str, ...]:
        fields = ["value"] if self._json is None else self._json.names
        if self.event_time == "timestamp" and "timestamp" not in (*fields, *names):
            names = (*names, "timestamp")
        for name in names:
            if name not in METADATA.names:
                known = ", ".join(METADATA.names)
                raise TopologyError(f"sources.Kafka: a message has no {name!r}; metadata can be {known}.")
            if name in fields:
                raise TopologyError(f"sources.Kafka: {name!r} is in schema and in metadata; remove one of them.")
        return tuple(dict.fromkeys(names))

    def _what(self) -> str:
        return repr(self.topics[0] if len(self.topics) == 1 else list(self.topics))

    def check(self) -> None:
        """Check that the columns exist and that event time is a timestamp or date; does not connect.

        Raises
        ------
        SourceError
            When they do not; names the column and the columns that exist.
        """
        self._names(self.schema)

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read the instance's partitions.

        Parameters
        ----------
        context : SourceContext
            The instance, the number of instances, and the offset to resume from.

        Yields
        ------
        tuple of RecordBatch and KafkaOffset
            Rows, and the offset after them.

        Raises
        ------
        SourceError
            When the client library is missing or too old, brokers or topics cannot be reached, messages were deleted
            before they were read, a value does not fit the schema, or as `check`.
        """
        lack = lacking("confluent_kafka", "confluent-kafka", "kafka")
        if lack is not None:
            raise SourceError(f"{self!r}: {lack}")
        names = self._names(self.schema)
        made = MessageRows(self._json, self._metadata, repr(self))
        offset = context.offset
        if offset is not None and not isinstance(offset, KafkaOffset):
            raise self._no_offset(offset)
        most = self._rows_at_once(self.batch_rows, context.instances)
        partitions = KafkaPartitions(
            {**self.options, "bootstrap.servers": self.servers}, self.topics, context, self.start, repr(self)
        )
        nothing = made.rows([], names)
        try:
            partitions.begin(offset, self.bounded)
            # Where reading begins is fixed before the first message arrives: "latest" would be later after a restart.
            yield nothing, partitions.offset
            while not context.stopping() and not partitions.ended:
                messages = partitions.take(most)
                if messages:
                    if partitions.are_several:
                        yield nothing, partitions.announced
                    yield made.rows(messages, names), partitions.offset
        finally:
            partitions.close()
