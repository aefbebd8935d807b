"""The mock cluster of the Kafka client library, for tests."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

SECONDS = 30
PARTITIONS = 4
"""Partitions of a topic, which the mock cluster creates when it is first mentioned."""


class KafkaCluster:
    """A broker in this process; the producer that starts it must live as long as it is used."""

    def __init__(self) -> None:
        # The address is replaced by that of the mock cluster.
        self.producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
        broker = next(iter(self.producer.list_topics(timeout=SECONDS).brokers.values()))
        self.servers = f"{broker.host}:{broker.port}"

    def send(self, topic: str, *messages: tuple[int, bytes | None]) -> None:
        """Send values to partitions, in order."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        for partition, value in messages:
            producer.produce(topic, value, key=str(partition).encode(), partition=partition, timestamp=1_000)
        assert producer.flush(SECONDS) == 0

    def received(self, topic: str) -> list[Any]:
        """Return all messages of a topic."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "received", "enable.partition.eof": True})
        consumer.list_topics(topic, timeout=SECONDS)
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        messages, ends = [], 0
        while ends < PARTITIONS:
            message = consumer.poll(SECONDS)
            assert message is not None, f"{topic}: no message within {SECONDS} s"
            if message.error() is None:
                messages.append(message)
            else:
                ends += 1
        consumer.close()
        return messages
