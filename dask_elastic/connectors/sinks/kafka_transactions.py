"""Messages that become visible once, in a transaction of Kafka for each checkpoint."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from dask_elastic.connectors.sinks.kafka_messages import KafkaMessages
from dask_elastic.topology.sink import SinkContext, SinkWriter, Staging
from dask_elastic.vocab.errors import ElasticError, SinkError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

logger = logging.getLogger("dask_elastic.kafka")

STAGED_BYTES = 32_000_000
"""Bytes of messages that a writer holds before it writes them to the folder of the checkpoints."""

CALL_SECONDS = 30.0
COMMIT_SECONDS = 300.0
"""How long a writer tries to commit while the brokers do not answer."""

TRANSACTION_SECONDS = 300
"""How long the brokers wait for an open transaction of a lost writer, unless another writer ends it before."""

TAKEOVERS = 5
"""How often a writer takes over its transactional id for one commit: each writer of an earlier generation that wakes
meanwhile may take it once."""

_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_FATAL", "_STATE"}
"""How the client library refuses calls once another writer has the transactional id; the last two for later calls."""

MOST_BYTES = 1_000_000
OVERHEAD = 512
"""The default of `message.max.bytes`, and what is left of it for the envelope of a message."""

_SCHEMA = pa.schema({"key": pa.large_binary(), "value": pa.large_binary()})
_MISSING = (
    "%s: the staged rows of checkpoint %d are missing, and the brokers no longer know whether they were committed: "
    "a commit deletes them, so they most probably were"
)


@dataclass(frozen=True)
class KafkaTransaction:
    """Messages that are staged and not committed.

    Parameters
    ----------
    identity : str
        The transactional id, and the group that knows the newest committed checkpoint.
    topic : str
        The topic.
    checkpoint : int
        The checkpoint for which they were prepared.
    files : tuple
        References to the staged messages.
    """

    identity: str
    topic: str
    checkpoint: int
    files: tuple[Any, ...]


class TransactionWriter(SinkWriter):
    """Stages messages, and sends those of a complete checkpoint in one transaction.

    Parameters
    ----------
    topic : str
        The topic.
    options : mapping
        Options of the client.
    messages : KafkaMessages
        Turns rows into messages.
    context : SinkContext
        The job and the instance.
    where : str
        Sink, job and topic, for errors.

    Notes
    -----
    The transaction also commits the number of the checkpoint as an offset of a group of the instance. Before it sends
    anything, a writer takes over the transactional id, which ends any transaction of a lost writer of the instance, and
    reads that offset: if it is as high as the checkpoint, the messages were committed before. A lost writer that
    continues is refused by the brokers from then on. If it was suspended just before it took over the id, and does so
    later, it finds that the job has a later generation, and ends; the writer of the newest one takes the id back.
    """

    def __init__(
        self, topic: str, options: Mapping[str, Any], messages: KafkaMessages, context: SinkContext, where: str
    ):
        if context.staging is None:
            raise SinkError(
                f"{where}: exactly-once needs a place for staged rows, which only jobs with checkpoints have."
            )
        self._topic = topic
        self._options = dict(options)
        self._messages = messages
        self._where = where
        self._staging = context.staging
        self._generation = context.generation
        job, operator = (quote(name, safe="") for name in (context.job, context.operator))
        self._identity = f"dask_elastic-{job}-{operator}-{context.run}-{context.instance}"
        self._operator = operator
        self._prefix = f"{operator}-{context.instance}-g"
        self._checkpoint = 0
        self._count = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._staged: list[Any] = []
        self._most = int(self._options.get("message.max.bytes", MOST_BYTES)) - OVERHEAD
        self._committer = self._committer_of(self._identity, topic)
        # Brokers that do not allow the transactions are found before any row is processed.
        self._committer.open()

    def write(self, rows: pa.RecordBatch) -> None:
        """Hold or stage messages."""
        keys, values = self._messages.keys(rows), self._messages.values(rows)
        for key, value in zip(keys, values, strict=True):
            # Found before the checkpoint is complete: a commit that fails again and again would stop the job for ever.
            if (size := len(key or b"") + len(value or b"")) > self._most:
                raise SinkError(
                    f"{self._where}: a message of {size:,} bytes is larger than message.max.bytes allows. Set that "
                    "option here and on the brokers, or send smaller rows."
                )
        batch = pa.record_batch([pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())], _SCHEMA)
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= STAGED_BYTES:
            self._stage()

    def close(self) -> None:
        """Do nothing: everything was committed before."""

    def abort(self) -> None:
        """Delete what was staged and not prepared."""
        for file in self._staged:
            try:
                self._staging.delete(file)
            except ElasticError as error:
                logger.warning("%s: %s is left: %s", self._where, file, error)
        self._held, self._staged = [], []

    def prepare(self, checkpoint: int) -> object | None:
        """Stage all messages, and return a reference to them."""
        self._stage()
        files, self._staged = tuple(self._staged), []
        self._checkpoint = checkpoint
        return KafkaTransaction(self._identity, self._topic, checkpoint, files) if files else None

    def commit(self, prepared: object) -> None:
        """Send staged messages in one transaction, unless they were committed before, and delete them."""
        if not isinstance(prepared, KafkaTransaction):
            raise SinkError(f"{self._where}: {prepared!r} is not a transaction of sinks.Kafka.")
        if prepared.identity == self._identity and prepared.topic == self._topic:
            self._committer.commit(prepared)
            return
        self._committer_of(prepared.identity, prepared.topic).commit(prepared)
        if prepared.identity == self._identity:
            # Of another topic, which the sink had before the job was resumed: it has taken over the transactional id.
            self._committer = self._committer_of(self._identity, self._topic)

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
        """Commit what a checkpoint holds, and delete what writers of earlier generations have left."""
        super().recover(prepared, checkpoint)
        self._checkpoint = checkpoint
        self._staging.sweep(self._prefix, self._generation)
        # Of instances that do not run any more, too; what they have prepared is committed by another one.
        self._staging.sweep_unprepared(self._operator, self._generation, checkpoint)

    def _committer_of(self, identity: str, topic: str) -> Committer:
        return Committer(identity, topic, self._options, self._staging, self._generation, self._where)

    def _stage(self) -> None:
        if self._held:
            name = f"{self._prefix}{self._generation}-c{self._checkpoint}-{self._count}"
            self._staged.append(self._staging.write(name, self._held))
            self._count += 1
            self._held, self._held_bytes = [], 0


class Committer:
    """Sends transactions under one transactional id, which it takes over from earlier writers when it is used first.

    Parameters
    ----------
    identity : str
        The transactional id.
    topic : str
        The topic.
    options : mapping
        Options of the client.
    staging : Staging
        Has the staged messages, and the newest generation.
    generation : int
        The writer's generation.
    where : str
        Sink, job and topic, for errors.
    """

    def __init__(
        self, identity: str, topic: str, options: Mapping[str, Any], staging: Staging, generation: int, where: str
    ):
        self._identity = identity
        self._topic = topic
        self._options = dict(options)
        self._staging = staging
        self._generation = generation
        self._where = where
        self._clients: tuple[Producer, Consumer] | None = None

    def commit(self, transaction: KafkaTransaction) -> None:
        """Send staged messages in one transaction, unless they were committed before, and delete them."""
        for left in reversed(range(TAKEOVERS)):
            try:
                self._send_new(transaction)
                break
            except SinkError as error:
                # In the newest generation, a writer of an earlier one was hung just before it took over the id.
                if not left or not _is_fenced(error):
                    raise
                logger.warning("%s This writer takes the id back, unless the job has a later generation.", error)
        for file in transaction.files:
            self._staging.delete(file)

    def _send_new(self, transaction: KafkaTransaction) -> None:
        """Send staged messages, unless they were committed before."""
        if self.newest() >= transaction.checkpoint:
            return
        batches = [self._staging.read(file) for file in transaction.files]
        if any(batch is None for batch in batches):
            logger.warning(_MISSING, self._where, transaction.checkpoint)
        else:
            self.send([rows for batch in batches if batch is not None for rows in batch], transaction.checkpoint)

    def newest(self) -> int:
        """Return the newest checkpoint that was committed, 0 for none; no other writer commits a later one then."""
        _, consumer = self.open()
        [found] = self._tried("read what was committed", lambda: consumer.committed([self._place(0)], CALL_SECONDS))
        if found.error is not None and found.error.name() == "UNKNOWN_TOPIC_OR_PART":
            # The first transaction creates the topic.
            return 0
        if found.error is not None:
            raise SinkError(f"{self._where}: the brokers do not say what was committed: {found.error}")
        return max(0, int(found.offset))

    def send(self, batches: Sequence[pa.RecordBatch], checkpoint: int) -> None:
        """Send messages, and commit them with the number of their checkpoint."""
        producer, consumer = self.open()
        try:
            self._tried("begin a transaction", producer.begin_transaction)
            for batch in batches:
                for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    self._tried("send a message", functools.partial(self._produce, producer, key, value))
            # Offsets of a topic that does not exist yet are refused.
            producer.flush(COMMIT_SECONDS)
            group = consumer.consumer_group_metadata()
            offsets = [self._place(checkpoint)]
            self._tried("add its offset", lambda: producer.send_offsets_to_transaction(offsets, group, CALL_SECONDS))
            self._tried("commit a transaction", lambda: producer.commit_transaction(CALL_SECONDS))
        except BaseException:
            # The brokers end what is open when the id is taken over, here or by another writer.
            self._clients = None
            raise

    def _place(self, offset: int) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, 0, offset)

    def open(self) -> tuple[Producer, Consumer]:
        """Take over the transactional id, if that was not done; no other writer can commit under it then."""
        if self._clients is None:
            import confluent_kafka

            reading = {
                name: value
                for name, value in self._options.items()
                if name.startswith(("bootstrap.", "sasl.", "ssl.", "security.", "client.", "log_level"))
            }
            reading |= {"group.id": self._identity, "enable.auto.commit": False, "isolation.level": "read_committed"}
            try:
                producer = confluent_kafka.Producer(
                    {
                        "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
                        **self._options,
                        "transactional.id": self._identity,
                    },
                    logger=logger,
                )
                consumer = confluent_kafka.Consumer(reading, logger=logger)
            except confluent_kafka.KafkaException as error:
                raise SinkError(f"{self._where}: cannot be opened: {error}") from error
            self._tried("take over the transactional id", functools.partial(self._take_over, producer))
            self._clients = producer, consumer
        return self._clients

    def _take_over(self, producer: Producer) -> None:
        self._check_newest()
        producer.init_transactions(CALL_SECONDS)
        # This process may have been suspended in between, and have taken the id from the writer that replaced this one.
        self._check_newest()

    def _check_newest(self) -> None:
        newest = self._staging.newest_generation()
        if newest > self._generation:
            raise SinkError(
                f"{self._where}: generation {newest} of the job has replaced this one, {self._generation}. Its writers "
                "commit the rows; this one ends."
            )

    def _produce(self, producer: Producer, key: bytes | None, value: bytes | None) -> None:
        while True:
            try:
                producer.produce(self._topic, value=value, key=key)
                return
            except BufferError:
                producer.poll(0.1)

    def _tried(self, what: str, call: Callable[[], Any]) -> Any:
        """Call the brokers until they answer, as long as the client library says that this may help."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + COMMIT_SECONDS
        while True:
            try:
                return call()
            except KafkaException as error:
                reason = error.args[0]
                if not reason.retriable() or time.monotonic() > deadline:
                    raise SinkError(
                        f"{self._where}: cannot {what}: {reason.str()}. The rows are kept in the folder of the "
                        "checkpoints; resume the job when the brokers answer and allow transactions."
                    ) from error


def _is_fenced(error: SinkError) -> bool:
    """Return whether the brokers have refused a call, since another writer has taken over the transactional id."""
    from confluent_kafka import KafkaException

    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].name() in _FENCED
