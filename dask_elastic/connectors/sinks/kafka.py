"""A sink that sends rows to a topic of Kafka."""

from __future__ import annotations

import datetime
import decimal
import importlib.util
import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError

Headers = list[tuple[str, str | bytes | None]]

WAIT_SECONDS = 0.1
"""How long a writer waits for room in the client's queue before it tries again."""


class Kafka(Sink):
    """Send rows to a topic of Kafka, one message each; needs the extra `kafka`.

    It promises each row at least once. Messages are visible when they are sent, a checkpoint waits until the brokers
    have acknowledged those before it, and a restart repeats the rows after it. In a job with checkpoints each message
    has the headers `generation`, a number that grows with each restart, `checkpoint`, the number of the checkpoint
    before it, and `instance`, as decimal text. When a generation begins at checkpoint n, messages of earlier
    generations with n or more are obsolete.

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
    options : mapping, optional
        Further options of the client, librdkafka.

    Raises
    ------
    TopologyError
        When an option is invalid.

    Notes
    -----
    Transactions of Kafka are not used: a producer that takes over from a lost one aborts its open transaction, and the
    rows of a complete checkpoint would be lost. Options are stored with the topology, also in checkpoints; so are
    passwords in them. Keys are assigned to partitions as Java's producer does it.

    Examples
    --------
    >>> Kafka("late-flights", "broker:9092", key="plane")
    Kafka('late-flights', key='plane')
    """

    promise = "at-least-once"

    def __init__(
        self,
        topic: str,
        servers: str,
        *,
        key: str | None = None,
        value: str | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        for name, given in (("topic", topic), ("servers", servers)):
            if not isinstance(given, str) or not given:
                raise TopologyError(f"sinks.Kafka: {name} is {given!r}; give a text that is not empty.")
        for name, column in (("key", key), ("value", value)):
            if column is not None and (not isinstance(column, str) or not column):
                raise TopologyError(f"sinks.Kafka: {name} is {column!r}; give the name of a column.")
        self.topic = topic
        self.servers = servers
        self.key = key
        self.value = value
        self.options = dict(options or {})

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text."""
        options = [f"{name}={column!r}" for name, column in (("key", self.key), ("value", self.value)) if column]
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
            When the client library is missing, or refuses an option.
        """
        where = f"sink {context.operator!r} of job {context.job!r}, topic {self.topic!r}"
        if importlib.util.find_spec("confluent_kafka") is None:
            raise SinkError(f"{where}: the client library is missing; install dask-elastic[kafka] on all workers.")
        return _Sender(self, context, where)


class _Sender(SinkWriter):
    def __init__(self, sink: Kafka, context: SinkContext, where: str):
        import confluent_kafka

        self._sink = sink
        self._context = context
        self._where = where
        self._checkpoint = 0
        self._failure: str | None = None
        options = {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            **sink.options,
            "bootstrap.servers": sink.servers,
        }
        try:
            self._producer = confluent_kafka.Producer(options, logger=logging.getLogger("dask_elastic.kafka"))
        except confluent_kafka.KafkaException as error:
            raise SinkError(f"{where}: cannot be opened: {error}") from error

    def write(self, rows: pa.RecordBatch) -> None:
        headers = self._headers()
        for key, value in zip(self._keys(rows), self._values(rows), strict=True):
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

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
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

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = error.str()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise SinkError(f"{self._where}: a message was not delivered: {self._failure}")

    def _keys(self, rows: pa.RecordBatch) -> list[bytes | None]:
        if self._sink.key is None:
            return [None] * rows.num_rows
        return [_as_bytes(key) for key in self._column(rows, self._sink.key).to_pylist()]

    def _values(self, rows: pa.RecordBatch) -> list[bytes | None]:
        if self._sink.value is not None:
            return [_as_bytes(value) for value in self._column(rows, self._sink.value).to_pylist()]
        try:
            return [
                json.dumps(_finite(row), default=_as_json, separators=(",", ":")).encode() for row in rows.to_pylist()
            ]
        except TypeError as error:
            raise SinkError(f"{self._where}: a row cannot become JSON: {error}. Use value= with bytes.") from error

    def _column(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        if name not in rows.schema.names:
            names = ", ".join(rows.schema.names)
            raise SinkError(f"{self._where}: the rows have no column {name!r}; they have {names}.")
        return rows.column(name)


def _as_bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _finite(value: Any) -> Any:
    """Replace floats that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _as_json(value: object) -> object:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"a value has the type {type(value).__name__}")
