"""A sink that sends rows to a topic of Kafka."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import pyarrow as pa

from dask_elastic.connectors.libraries import lacking
from dask_elastic.connectors.sinks.kafka_messages import KafkaMessages
from dask_elastic.connectors.sinks.kafka_transactions import Committer, KafkaTransaction, TransactionWriter
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError

Guarantee = Literal["at-least-once", "exactly-once"]
Headers = list[tuple[str, str | bytes | None]]

WAIT_SECONDS = 0.1
"""How long a writer waits for room in the client's queue before it tries again."""


class Kafka(Sink):
    """Send rows to a topic of Kafka, one message each; needs the extra `kafka`.

    By default it promises each row at least once. Messages are visible when they are sent, a checkpoint waits until the
    brokers have acknowledged those before it, and a restart repeats the rows after it. In a job with checkpoints each
    message has the headers `generation`, a number that grows with each restart, `checkpoint`, the number of the
    checkpoint before it, and `instance`, as decimal text. When a generation begins at checkpoint n, messages of earlier
    generations with n or more are obsolete.

    With ``guarantee="exactly-once"``, consumers with ``isolation.level=read_committed`` see each row once. Messages
    have no headers, and are sent in one transaction of Kafka per checkpoint and instance when the checkpoint is
    complete; until then they are kept in the folder of the job's checkpoints. Without checkpoints it makes no
    difference.

    Parameters
    ----------
    topic : str
        The topic.
    servers : str
        The brokers to begin with, such as "broker1:9092,broker2:9092".
    key : str, optional
        The column that becomes the message's key, as text if it is not binary. Rows of one key stay in order.
    value : str, optional
        The column of bytes or text that becomes the message's value. By default the value is a JSON object with all
        columns: times as ISO 8601, decimals as text, NaN and infinity as null.
    guarantee : {"at-least-once", "exactly-once"}
        How often a row is visible if the job restarts.
    options : mapping, optional
        Further options of the client, librdkafka.

    Raises
    ------
    TopologyError
        When an option is invalid.

    Notes
    -----
    Options are stored with the topology, also in checkpoints; so are passwords in them. Keys are assigned to partitions
    as Java's producer does it. For exactly-once, the brokers must allow transactions of the ids, and commits of the
    groups, that begin with `dask_elastic-`. Each transaction commits the number of its checkpoint as an offset of
    partition 0 for a group of its instance; these groups have no members and consume nothing.

    Examples
    --------
    >>> Kafka("late-flights", "broker:9092", key="plane")
    Kafka('late-flights', key='plane')
    """

    def __init__(
        self,
        topic: str,
        servers: str,
        *,
        key: str | None = None,
        value: str | None = None,
        guarantee: Guarantee = "at-least-once",
        options: Mapping[str, Any] | None = None,
    ):
        for name, given in (("topic", topic), ("servers", servers)):
            if not isinstance(given, str) or not given:
                raise TopologyError(f"sinks.Kafka: {name} is {given!r}; give a text that is not empty.")
        for name, column in (("key", key), ("value", value)):
            if column is not None and (not isinstance(column, str) or not column):
                raise TopologyError(f"sinks.Kafka: {name} is {column!r}; give the name of a column.")
        if guarantee not in get_args(Guarantee):
            choices = " or ".join(map(repr, get_args(Guarantee)))
            raise TopologyError(f"sinks.Kafka: guarantee is {guarantee!r}; choose {choices}.")
        self.promise = guarantee
        self.topic = topic
        self.servers = servers
        self.key = key
        self.value = value
        self.options = dict(options or {})

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text."""
        options = [f"{name}={column!r}" for name, column in (("key", self.key), ("value", self.value)) if column]
        options += ['guarantee="exactly-once"'] if self.promise == "exactly-once" else []
        return f"Kafka({', '.join([repr(self.topic), *options])})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Return a writer with a producer of its own.

        Parameters
        ----------
        context : SinkContext
            The generation and the instance, which become headers.

        Returns
        -------
        SinkWriter
            The writer. Its `write` blocks while the client's queue is full.

        Raises
        ------
        SinkError
            When the client library is missing or too old, or refuses an option.
        """
        where = f"sink {context.operator!r} of job {context.job!r}, topic {self.topic!r}"
        lack = lacking("confluent_kafka", "confluent-kafka", "kafka")
        if lack is not None:
            raise SinkError(f"{where}: {lack}")
        if self.promise == "exactly-once" and context.checkpoints:
            messages = KafkaMessages(self.key, self.value, where)
            return TransactionWriter(self.topic, self._client_options(), messages, context, where)
        return _Sender(self, context, where)

    def _client_options(self) -> dict[str, Any]:
        return {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            **self.options,
            "bootstrap.servers": self.servers,
        }


class _Sender(SinkWriter):
    def __init__(self, sink: Kafka, context: SinkContext, where: str):
        import confluent_kafka

        self._sink = sink
        self._context = context
        self._where = where
        self._messages = KafkaMessages(sink.key, sink.value, where)
        self._checkpoint = 0
        self._failures: list[str] = []
        # The client keeps it until all messages are delivered; if it kept the producer, the threads would never end.
        self._delivered = partial(_note_failure, self._failures)
        try:
            self._producer = confluent_kafka.Producer(
                sink._client_options(), logger=logging.getLogger("dask_elastic.kafka")
            )
        except confluent_kafka.KafkaException as error:
            raise SinkError(f"{where}: cannot be opened: {error}") from error

    def write(self, rows: pa.RecordBatch) -> None:
        headers = self._headers()
        for key, value in zip(self._messages.keys(rows), self._messages.values(rows), strict=True):
            self._send(key, value, headers)
        self._producer.poll(0)
        self._raise_failure()

    def close(self) -> None:
        self._flush()

    def abort(self) -> None:
        self._producer.purge()

    def prepare(self, checkpoint: int) -> object | None:
        self._flush()
        self._checkpoint = checkpoint
        return None

    def commit(self, prepared: object) -> None:
        """Send what was staged before the job was resumed with another guarantee."""
        staging = self._context.staging
        if not isinstance(prepared, KafkaTransaction) or staging is None:
            raise SinkError(f"{self._where}: {prepared!r} is not a transaction of sinks.Kafka.")
        options, generation = self._sink._client_options(), self._context.generation
        Committer(prepared.identity, prepared.topic, options, staging, generation, self._where).commit(prepared)

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
        super().recover(prepared, checkpoint)
        self._checkpoint = checkpoint

    def _headers(self) -> Headers:
        context = self._context
        if not context.checkpoints:
            return []
        numbers = {"generation": context.generation, "checkpoint": self._checkpoint, "instance": context.instance}
        return [(name, str(number).encode()) for name, number in numbers.items()]

    def _send(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        while True:
            try:
                self._producer.produce(
                    self._sink.topic, value=value, key=key, headers=headers, on_delivery=self._delivered
                )
                return
            except BufferError:
                self._producer.poll(WAIT_SECONDS)
                self._raise_failure()

    def _flush(self) -> None:
        # Ends: a message that the brokers do not acknowledge fails after the client's message.timeout.ms.
        self._producer.flush()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failures:
            raise SinkError(f"{self._where}: a message was not delivered: {self._failures[0]}")


def _note_failure(failures: list[str], error: Any, message: Any) -> None:
    """Note the first message that was not delivered."""
    if error is not None and not failures:
        failures.append(error.str())
