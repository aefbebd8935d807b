"""A broker in memory that keeps the promises of Kafka's transactions, which the mock cluster of the client lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException


@dataclass
class Broker:
    """Committed messages by topic, offsets by group, and the newest epoch of each transactional id."""

    messages: dict[str, list[tuple[bytes | None, bytes | None]]] = field(default_factory=dict)
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    """Calls that fail when they are made next: "commit" before it takes effect, "committed" after it."""
    suspended: list[Callable[[], object]] = field(default_factory=list)
    """What happens while the producer that takes over an id next is suspended just before."""

    def fail(self, step: str) -> None:
        if step in self.failing:
            self.failing.remove(step)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, step))

    def producer(self, options: dict[str, Any], logger: Any = None) -> Producer:
        return Producer(self, options)

    def consumer(self, options: dict[str, Any], logger: Any = None) -> Consumer:
        assert options["isolation.level"] == "read_committed"
        return Consumer(self, options["group.id"])


class Producer:
    """The calls of a producer that the sink makes; each is refused once another producer has the transactional id."""

    def __init__(self, broker: Broker, options: dict[str, Any]):
        self.broker, self.identity = broker, str(options.get("transactional.id"))
        self.epoch = 0
        self.open: list[tuple[str, bytes | None, bytes | None]] | None = None
        self.offsets: dict[str, dict[tuple[str, int], int]] = {}

    def init_transactions(self, timeout: float) -> None:
        if self.broker.suspended:
            self.broker.suspended.pop()()
        self.epoch = self.broker.epochs[self.identity] = self.broker.epochs.get(self.identity, 0) + 1

    def _check(self) -> None:
        if self.epoch != self.broker.epochs[self.identity]:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))

    def begin_transaction(self) -> None:
        assert self.open is None
        self.open, self.offsets = [], {}

    def produce(self, topic: str, value: bytes | None, key: bytes | None) -> None:
        self._check()
        assert self.open is not None
        self.open.append((topic, key, value))

    def flush(self, timeout: float) -> int:
        return 0

    def send_offsets_to_transaction(self, offsets: list[Any], group: str, timeout: float) -> None:
        self._check()
        self.offsets[group] = {(each.topic, each.partition): each.offset for each in offsets}

    def commit_transaction(self, timeout: float) -> None:
        self._check()
        self.broker.fail("commit")
        assert self.open is not None
        for topic, key, value in self.open:
            self.broker.messages.setdefault(topic, []).append((key, value))
        for group, offsets in self.offsets.items():
            self.broker.offsets.setdefault(group, {}).update(offsets)
        self.open = None
        self.broker.fail("committed")


class Consumer:
    """The calls of a consumer that the sink makes."""

    def __init__(self, broker: Broker, group: str):
        self.broker, self.group = broker, group

    def consumer_group_metadata(self) -> str:
        return self.group

    def committed(self, places: list[Any], timeout: float) -> list[Any]:
        known = self.broker.offsets.get(self.group, {})
        for place in places:
            place.offset = known.get((place.topic, place.partition), -1001)
        return places
