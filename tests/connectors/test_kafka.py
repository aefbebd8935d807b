from __future__ import annotations

import datetime
import decimal
import itertools
import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

from dask_elastic.connectors import sinks, sources
from dask_elastic.connectors.sources.kafka_partitions import KafkaPartitions
from dask_elastic.testing import check_sink, check_source
from dask_elastic.topology import SinkContext, SourceContext
from dask_elastic.vocab.errors import SinkError, SourceError, TopologyError

sys.path.insert(0, str(Path(__file__).parent))
from kafka_cluster import KafkaCluster

SCHEMA = pa.schema({"n": pa.int64(), "word": pa.string(), "at": pa.timestamp("us", "UTC")})


@pytest.fixture(scope="module")
def cluster() -> KafkaCluster:
    return KafkaCluster()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return request.node.name.translate(str.maketrans("[]", "--"))


def value(n: int) -> bytes:
    return json.dumps({"n": n, "word": f"w{n}", "at": f"2024-01-01T00:00:{n % 60:02}Z", "unknown": [1]}).encode()


def fill(cluster: KafkaCluster, topic: str, count: int, partitions: int = 4) -> None:
    cluster.send(topic, *((n % partitions, value(n)) for n in range(count)))


def read(source: sources.Kafka, **context: object) -> list[tuple[pa.RecordBatch, object]]:
    return list(source.read(SourceContext(**context)))


def column(batches: list[tuple[pa.RecordBatch, object]], name: str = "n") -> list[object]:
    return [each for rows, _ in batches for each in rows[name].to_pylist()]


def test_instances_share_partitions_and_resume_from_each_offset(cluster, topic):
    fill(cluster, topic, 60)

    def make():
        return sources.Kafka(topic, cluster.servers, schema=SCHEMA, bounded=True, batch_rows=5, parallel=4)

    assert sorted(check_source(make, most_offsets=3)["n"].to_pylist()) == list(range(60))


def test_announced_messages_come_first_and_in_order_after_a_restart(cluster, topic):
    """The engine resumes in the midst of a batch: it reads from the offset before and skips rows."""
    fill(cluster, topic, 90, partitions=3)
    source = sources.Kafka(topic, cluster.servers, schema=SCHEMA, metadata=["partition"], bounded=True, batch_rows=20)
    whole = read(source)
    assert sorted(column(whole)) == list(range(90))
    # A later read gets more of the first partition at once.
    cluster.send(topic, *((0, value(n)) for n in range(90, 150)))
    done: list[object] = []
    for (nothing, announced), (rows, after) in zip(whole[1::2], whole[2::2], strict=True):
        assert nothing.num_rows == 0
        assert rows.num_rows <= 20
        found = column(read(source, offset=cloudpickle.loads(cloudpickle.dumps(announced))))
        assert found[: rows.num_rows] == rows["n"].to_pylist()
        assert sorted([*done, *found]) == list(range(150))
        done += rows["n"].to_pylist()
        assert sorted([*done, *column(read(source, offset=after))]) == list(range(150))
    for partition in range(3):
        of_one = [row["n"] for rows, _ in whole for row in rows.to_pylist() if row["partition"] == partition]
        assert of_one == sorted(of_one)


def test_batches_announce_what_comes_next_only_if_there_are_several_partitions(cluster, topic):
    fill(cluster, topic, 8)
    source = sources.Kafka(topic, cluster.servers, bounded=True, parallel=4)
    start, *found = [rows.num_rows for rows, _ in read(source, instance=1, instances=4)]
    assert start == 0
    assert sum(found) == 2
    assert all(found)


def test_unbounded_source_reads_what_arrives_until_the_job_stops(cluster, topic):
    fill(cluster, topic, 4)
    stops: list[bool] = []
    source = sources.Kafka(topic, cluster.servers, schema=SCHEMA, start="latest")
    reading = source.read(SourceContext(stopping=lambda: bool(stops)))
    nothing, start = next(reading)
    assert nothing.num_rows == 0
    cluster.send(topic, (2, value(7)))
    found = next(rows for rows, _ in reading if rows.num_rows)
    assert found["n"].to_pylist() == [7]
    stops.append(True)
    assert list(reading) == []
    # The start was fixed before the message arrived: a restart reads it again.
    again = sources.Kafka(topic, cluster.servers, schema=SCHEMA, start="latest", bounded=True)
    assert column(read(again, offset=start)) == [7]
    assert column(read(again)) == []


def test_bounded_source_leaves_messages_that_arrive_later(cluster, topic, monkeypatch):
    fill(cluster, topic, 8)
    assign = KafkaPartitions._assign

    def send_and_assign(partitions, positions):
        cluster.send(topic, *((partition, value(100)) for partition in range(4)))
        assign(partitions, positions)

    monkeypatch.setattr(KafkaPartitions, "_assign", send_and_assign)
    source = sources.Kafka(topic, cluster.servers, schema=SCHEMA, bounded=True)
    assert sorted(column(read(source))) == list(range(8))


def test_values_of_bytes_and_metadata_become_columns(cluster, topic):
    cluster.send(topic, (3, b"\0x"), (3, None))
    source = sources.Kafka(
        topic, cluster.servers, metadata=["offset", "key", "topic"], event_time="timestamp", bounded=True
    )
    source.check()
    assert source.known_schema().names == ["value", "offset", "key", "topic", "timestamp"]
    # Brokers may hand a message over before the one that was sent with it: the two are then two batches.
    rows = [row for rows, _ in read(source) for row in rows.to_pylist()]
    at = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    common = {"key": b"3", "topic": topic, "timestamp": at}
    assert rows == [{"value": b"\0x", "offset": 0, **common}, {"value": None, "offset": 1, **common}]
    pruned = source.columns_read(("offset",))
    assert read(pruned)[-1][0].schema.names == ["offset", "timestamp"]


def test_only_used_fields_of_json_are_read(cluster, topic):
    cluster.send(topic, (0, b'{"n": 1,\n "word": 5}'), (0, b"{}"), (0, None))
    source = sources.Kafka(topic, cluster.servers, schema=SCHEMA, bounded=True)
    assert column(read(source.columns_read(("n",)))) == [1, None, None]
    with pytest.raises(SourceError, match=r"the value at offset 0 of partition 0 of .* is not a JSON object"):
        read(source)


@pytest.mark.parametrize(
    "bad",
    [b"null", b"[1]", b'{"n": 1} null', b'{"n": 1}{"n": 2}', b'{"n": 1', b"", b"\xff", b'{"n": "x"}', b"[" * 9_999],
)
def test_message_that_is_no_object_of_the_schema_is_named(cluster, topic, bad):
    topic = f"bad-{hash(bad)}"
    cluster.send(topic, (0, value(0)), (1, value(1)), (1, bad))
    source = sources.Kafka(topic, cluster.servers, schema=SCHEMA, bounded=True)
    with pytest.raises(SourceError, match=rf"Kafka\('{topic}'\): the value at offset 1 of partition 1 of '{topic}'"):
        read(source)


def test_deleted_messages_are_an_error(cluster, topic):
    fill(cluster, topic, 4)
    source = sources.Kafka(topic, cluster.servers, parallel=4)
    _, start = next(source.read(SourceContext(instances=4)))
    beyond = start._replace(positions=((topic, 0, 1_000),))
    with pytest.raises(SourceError, match=rf"offset 1000 of partition 0 of '{topic}' does not exist: retention has"):
        read(source, offset=beyond, instances=4)


def test_offset_of_other_partitions_is_refused(cluster, topic):
    fill(cluster, topic, 4)
    source = sources.Kafka(topic, cluster.servers, bounded=True, parallel=2)
    offset = read(source, instance=1, instances=2)[-1][1]
    with pytest.raises(SourceError, match=rf"partition 1 of '{topic}' no longer belongs to instance 0"):
        read(source, offset=offset, instance=0, instances=2)
    with pytest.raises(SourceError, match="7 is not an offset of this source"):
        read(source, offset=7)


def test_partition_that_was_added_is_read_from_its_beginning(cluster, topic):
    fill(cluster, topic, 8)
    source = sources.Kafka(topic, cluster.servers, schema=SCHEMA, start="latest", bounded=True)
    _, offset = read(source)[-1]
    fewer = offset._replace(positions=offset.positions[:-1])
    assert column(read(source, offset=fewer)) == [3, 7]


def test_brokers_that_cannot_be_reached_are_named(monkeypatch):
    monkeypatch.setattr("dask_elastic.connectors.sources.kafka_partitions.CONNECT_SECONDS", 0.2)
    with pytest.raises(SourceError, match=r"Kafka\('delays'\): the brokers cannot be reached"):
        read(sources.Kafka("delays", "127.0.0.1:1", options={"log_level": 0}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": []}, r"topics is \[\]"),
        ({"servers": ""}, "servers is ''"),
        ({"schema": {"n": "int"}}, "schema is"),
        ({"start": "now"}, "start is 'now'"),
        ({"metadata": ["headers"]}, "a message has no 'headers'; metadata can be key, topic"),
        ({"schema": pa.schema({"key": pa.string()}), "metadata": ["key"]}, "'key' is in schema and in metadata"),
        ({"batch_rows": 0}, "batch_rows is 0"),
    ],
)
def test_invalid_options_of_a_kafka_source_are_refused(options, message):
    with pytest.raises(TopologyError, match=message):
        sources.Kafka(**{"topics": "delays", "servers": "broker", **options})


def context(generation: int = 0, checkpoints: bool = True) -> SinkContext:
    return SinkContext("job", "out", 1, 1, run="r", checkpoints=checkpoints, generation=generation)


def test_kafka_sink_sends_each_row_at_least_once(cluster):
    topics = (f"sink-{number}" for number in itertools.count())

    def read_back(sink: sinks.Kafka) -> Iterator[pa.RecordBatch]:
        for message in cluster.received(sink.topic):
            yield pa.RecordBatch.from_pylist([json.loads(message.value())])

    # An idempotent producer begins with a request that the mock cluster answers late.
    options = {"linger.ms": 0, "enable.idempotence": False}
    check_sink(lambda: sinks.Kafka(next(topics), cluster.servers, options=options), read_back)


def test_messages_have_key_value_and_the_numbers_of_the_checkpoint(cluster, topic):
    rows = pa.RecordBatch.from_pydict({"plane": ["N1", "N2", None], "text": [b"a", None, b"c"]})
    writer = sinks.Kafka(topic, cluster.servers, key="plane", value="text").open(context(generation=2))
    writer.recover([], 4)
    writer.write(rows.slice(0, 1))
    assert writer.prepare(5) is None
    writer.write(rows.slice(1))
    writer.close()
    found = {message.key(): (message.value(), dict(message.headers())) for message in cluster.received(topic)}
    numbers = {"generation": b"2", "instance": b"1"}
    assert found == {
        b"N1": (b"a", {**numbers, "checkpoint": b"4"}),
        b"N2": (None, {**numbers, "checkpoint": b"5"}),
        None: (b"c", {**numbers, "checkpoint": b"5"}),
    }


def test_rows_become_json(cluster, topic):
    row = {
        "f": float("nan"),
        "d": decimal.Decimal("1.50"),
        "at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        "day": datetime.date(2024, 1, 1),
        "list": [1.5, float("inf")],
        "none": None,
    }
    writer = sinks.Kafka(topic, cluster.servers).open(context(checkpoints=False))
    writer.write(pa.RecordBatch.from_pylist([row]))
    writer.close()
    [message] = cluster.received(topic)
    assert message.headers() is None
    assert message.value() == (
        b'{"f":null,"d":"1.50","at":"2024-01-01T00:00:00+00:00","day":"2024-01-01","list":[1.5,null],"none":null}'
    )
    with pytest.raises(SinkError, match=r"a row cannot become JSON: a value has the type bytes\. Use value="):
        writer.write(pa.RecordBatch.from_pylist([{"b": b"x"}]))
    writer.abort()


def test_message_that_is_not_delivered_fails_the_checkpoint():
    options = {"message.timeout.ms": 50, "log_level": 0, "enable.idempotence": False, "linger.ms": 0}
    writer = sinks.Kafka("delays", "127.0.0.1:1", options=options).open(context())
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}))
    with pytest.raises(SinkError, match="sink 'out' of job 'job', topic 'delays': a message was not delivered"):
        writer.prepare(1)
    writer.abort()


@pytest.mark.parametrize("ended", [True, False])
def test_writer_whose_messages_are_not_delivered_is_freed(ended):
    # Its producer, which the client keeps with its threads as long as it exists, is freed with it.
    options = {"log_level": 0, "enable.idempotence": False}
    writer = sinks.Kafka("delays", "127.0.0.1:1", options=options).open(context())
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}))
    if ended:
        writer.abort()
    kept = weakref.ref(writer)
    del writer
    assert kept() is None


def test_full_queue_of_the_client_blocks_the_writer(cluster, topic):
    options = {"queue.buffering.max.messages": 5, "linger.ms": 0}
    writer = sinks.Kafka(topic, cluster.servers, options=options).open(context())
    writer.write(pa.RecordBatch.from_pydict({"n": list(range(100))}))
    writer.prepare(1)
    assert len(cluster.received(topic)) == 100
    writer.close()


def test_invalid_options_of_a_kafka_sink_are_refused():
    with pytest.raises(TopologyError, match="servers is ''"):
        sinks.Kafka("delays", "")
    with pytest.raises(TopologyError, match="key is 3; give the name of a column"):
        sinks.Kafka("delays", "broker", key=3)
    with pytest.raises(SinkError, match=r"topic 'delays': cannot be opened: .*nonsense"):
        sinks.Kafka("delays", "broker", options={"nonsense": 1}).open(context())
    writer = sinks.Kafka("delays", "broker", key="plane", options={"log_level": 0}).open(context())
    with pytest.raises(SinkError, match="the rows have no column 'plane'; they have n"):
        writer.write(pa.RecordBatch.from_pydict({"n": [1]}))
