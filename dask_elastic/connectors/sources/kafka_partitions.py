"""The partitions of topics that one instance reads, and its position in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dask_elastic.topology.source import SourceContext
from dask_elastic.vocab.errors import SourceError

POLL_SECONDS = 0.1
"""Longest wait for messages, after which the source checks whether the job ends."""

CONNECT_SECONDS = 30.0
"""Longest wait for the brokers when reading begins."""

Partition = tuple[str, int]


class KafkaOffset(NamedTuple):
    """Where an instance resumes: the next offset of each partition, and the offsets up to which it reads first."""

    positions: tuple[tuple[str, int, int], ...]
    until: tuple[tuple[str, int, int], ...] = ()


class KafkaPartitions:
    """Reads messages of an instance's partitions, in an order that can be repeated.

    A batch has the messages of one partition after those of another. Which messages it has depends on what arrived
    first; `announced` is an offset from which exactly these are read first.

    Parameters
    ----------
    options : mapping
        Options of the client.
    topics : tuple of str
        The topics.
    context : SourceContext
        The instance and the number of instances.
    start : str
        "earliest" or "latest", for partitions without an offset.
    where : str
        Names the source in errors.
    """

    def __init__(
        self, options: Mapping[str, Any], topics: tuple[str, ...], context: SourceContext, start: str, where: str
    ):
        import confluent_kafka

        self._kafka = confluent_kafka
        self._topics = topics
        self._context = context
        self._start = start
        self._where = where
        self._positions: dict[Partition, int] = {}
        # The offsets before which the source ends, if it is bounded.
        self._ends: dict[Partition, int] | None = None
        # Partitions without further messages before these offsets: compaction leaves gaps, and so do transactions.
        self._exhausted: set[Partition] = set()
        # The offsets up to which messages come first after a restart.
        self._until: dict[Partition, int] = {}
        self.announced = KafkaOffset(())
        self._consumer = confluent_kafka.Consumer(
            {
                "group.id": "dask_elastic",
                **options,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                # Messages that were deleted before they were read are an error.
                "auto.offset.reset": "error",
            },
            logger=logging.getLogger("dask_elastic.kafka"),
        )

    def begin(self, offset: KafkaOffset | None, bounded: bool) -> None:
        """Look up the partitions and begin at an offset, or at the start."""
        known = {} if offset is None else _as_dict(offset.positions)
        self._until = {} if offset is None else _as_dict(offset.until)
        partitions = self._own_partitions()
        missing = sorted(known.keys() - partitions)
        if missing:
            raise SourceError(
                f"{self._where}: partition {missing[0][1]} of {missing[0][0]!r} no longer belongs to instance "
                f"{self._context.instance}; restore topics and `parallel`, or submit the job anew."
            )
        ends = {}
        for topic, number in sorted(partitions):
            low, high = self._call(
                self._consumer.get_watermark_offsets,
                self._kafka.TopicPartition(topic, number),
                timeout=CONNECT_SECONDS,
            )
            # A partition that was added since the checkpoint is read from its beginning.
            first = low if self._start == "earliest" or offset is not None else high
            self._positions[topic, number] = known.get((topic, number), first)
            ends[topic, number] = high
        self._ends = ends if bounded else None
        self._assign(self._until or self._positions)

    @property
    def are_several(self) -> bool:
        """Whether the order of the messages is not that of a single partition."""
        return len(self._positions) > 1

    @property
    def offset(self) -> KafkaOffset:
        """The offset after the messages taken."""
        return KafkaOffset(_as_tuple(self._positions), _as_tuple(self._until))

    @property
    def ended(self) -> bool:
        """Whether all messages that a bounded source reads were taken."""
        if self._ends is None or self._until:
            return False
        return all(each in self._exhausted or self._positions[each] >= end for each, end in self._ends.items())

    def take(self, most: int) -> list[Any]:
        """Wait a moment for messages and return them, ordered by partition and offset; none if there are none."""
        if self._until:
            return self._take_first()
        before = KafkaOffset(_as_tuple(self._positions))
        messages = self._consume(most)
        messages = [message for message in messages if self._is_wanted(message, self._ends)]
        messages.sort(key=lambda message: (_place(message), message.offset()))
        reached = {_place(message): message.offset() + 1 for message in messages}
        self.announced = before._replace(until=_as_tuple(reached))
        self._positions.update(reached)
        return messages

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _take_first(self) -> list[Any]:
        """Return the messages that the offset has announced; waits until all have arrived."""
        self.announced = self.offset
        messages: list[Any] = []
        open_until = dict(self._until)
        while open_until and not self._context.stopping():
            for message in self._consume(10_000, ended=open_until):
                place = _place(message)
                if self._is_wanted(message, self._until):
                    messages.append(message)
                if message.offset() + 1 >= self._until[place]:
                    open_until.pop(place, None)
        if open_until:
            return []
        self._positions.update(self._until)
        self._until = {}
        self._assign(self._positions)
        messages.sort(key=lambda message: (_place(message), message.offset()))
        return messages

    def _consume(self, most: int, ended: dict[Partition, int] | None = None) -> list[Any]:
        """Return messages; a partition whose end was reached leaves `ended`."""
        messages = []
        for message in self._poll(most):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() != self._kafka.KafkaError._PARTITION_EOF:
                self._raise(message, error)
            else:
                place = _place(message)
                if ended is None:
                    self._exhausted.add(place)
                else:
                    ended.pop(place, None)
        return messages

    def _poll(self, most: int) -> list[Any]:
        """Wait for a message, and return it with those that are already here."""
        # `consume` alone would wait until there are so many, or the time is over.
        message = self._consumer.poll(POLL_SECONDS)
        if message is None:
            return []
        return [message, *(self._consumer.consume(most - 1, 0) if most > 1 else ())]

    def _is_wanted(self, message: Any, ends: Mapping[Partition, int] | None) -> bool:
        return ends is None or message.offset() < ends[_place(message)]

    def _own_partitions(self) -> set[Partition]:
        found = []
        for topic in sorted(self._topics):
            metadata = self._call(self._consumer.list_topics, topic, timeout=CONNECT_SECONDS).topics[topic]
            if metadata.error is not None:
                raise SourceError(f"{self._where}: topic {topic!r} cannot be read: {metadata.error.str()}")
            found.append([(topic, number) for number in sorted(metadata.partitions)])
        # Round-robin within each topic: partitions that are added do not change the owners of the others.
        instance, instances = self._context.instance, self._context.instances
        return {place for places in found for place in places[instance::instances]}

    def _assign(self, positions: Mapping[Partition, int]) -> None:
        """Begin to read the given partitions at the positions reached."""
        self._consumer.assign(
            [self._kafka.TopicPartition(topic, number, self._positions[topic, number]) for topic, number in positions]
        )

    def _call(self, function: Any, *arguments: Any, timeout: float) -> Any:
        until = time.monotonic() + timeout
        while True:
            try:
                return function(*arguments, timeout=min(timeout, 5.0))
            except self._kafka.KafkaException as error:
                if time.monotonic() > until or self._context.stopping():
                    raise SourceError(f"{self._where}: the brokers cannot be reached: {error}") from error

    def _raise(self, message: Any, error: Any) -> None:
        if error.retriable():
            return
        place = f"partition {message.partition()} of {message.topic()!r}"
        if error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
            raise SourceError(
                f"{self._where}: offset {message.offset()} of {place} does not exist: retention has deleted messages "
                "before they were read, or the topic was created anew. Submit the job anew, and raise the retention."
            )
        raise SourceError(f"{self._where}: {place} cannot be read: {error.str()}")


def _place(message: Any) -> Partition:
    return message.topic(), message.partition()


def _as_tuple(offsets: Mapping[Partition, int]) -> tuple[tuple[str, int, int], ...]:
    return tuple((topic, number, offset) for (topic, number), offset in sorted(offsets.items()))


def _as_dict(offsets: Iterable[tuple[str, int, int]]) -> dict[Partition, int]:
    return {(topic, number): offset for topic, number, offset in offsets}
