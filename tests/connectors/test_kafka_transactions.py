"""sinks.Kafka with exactly-once: transactions on a broker in memory, and the calls on the client's mock cluster."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pytest

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.staged_rows import StagedRows
from dask_elastic.connectors import sinks
from dask_elastic.connectors.sinks import kafka_transactions
from dask_elastic.testing import check_sink
from dask_elastic.topology import SinkContext
from dask_elastic.vocab.errors import CheckpointCorrupt, SinkError, TopologyError

sys.path.insert(0, str(Path(__file__).parent))
from kafka_cluster import KafkaCluster
from transactional_broker import Broker, Producer

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})


@pytest.fixture
def broker(monkeypatch):
    made = Broker()
    monkeypatch.setattr(confluent_kafka, "Producer", made.producer)
    monkeypatch.setattr(confluent_kafka, "Consumer", made.consumer)
    return made


@pytest.fixture
def staging(tmp_path):
    return StagedRows(CheckpointFolder(tmp_path))


def opened(staging, generation=0, instance=0, servers="broker", **options):
    # The coordinator reserves a generation before anything of it starts.
    staging._folder.claim(f"generations/{generation:06d}")
    sink = sinks.Kafka("delays", servers, guarantee="exactly-once", **options)
    context = SinkContext(
        "job", "out", instance, instance, run="r", checkpoints=True, generation=generation, staging=staging
    )
    return sink.open(context)


def numbers(broker):
    return [json.loads(value)["n"] for _, value in broker.messages.get("delays", [])]


def files(tmp_path):
    return sorted(path.name for path in tmp_path.glob("staged/*"))


def test_each_row_is_visible_once_whatever_writers_are_lost(broker, monkeypatch):
    monkeypatch.setattr(kafka_transactions, "STAGED_BYTES", 100)
    topics = (f"sink-{number}" for number in itertools.count())

    def read_back(sink):
        for _, value in broker.messages.get(sink.topic, []):
            yield pa.RecordBatch.from_pylist([json.loads(value)])

    check_sink(lambda: sinks.Kafka(next(topics), "broker", guarantee="exactly-once"), read_back)


def test_rows_are_staged_until_they_are_committed_with_the_number_of_their_checkpoint(broker, staging, tmp_path):
    writer = opened(staging, key="n")
    assert writer.prepare(1) is None
    writer.write(ROWS)
    prepared = writer.prepare(2)
    assert numbers(broker) == []
    assert files(tmp_path) == ["out-0-g0-c1-0.arrows"]
    writer.commit(prepared)
    writer.commit(prepared)
    assert [key for key, _ in broker.messages["delays"]] == [b"1", b"2", b"3"]
    assert broker.offsets == {"dask_elastic-job-out-r-0": {("delays", 0): 2}}
    assert files(tmp_path) == []


@pytest.mark.parametrize("step", ["commit", "committed"])
def test_commit_that_fails_is_repeated_by_the_next_writer_if_it_had_no_effect(broker, staging, step):
    writer = opened(staging)
    writer.write(ROWS)
    prepared = writer.prepare(1)
    broker.failing.append(step)
    with pytest.raises(SinkError, match=r"cannot commit a transaction: .* resume the job when the brokers answer"):
        writer.commit(prepared)
    opened(staging, generation=1).recover([prepared], 1)
    assert numbers(broker) == [1, 2, 3]


def test_lost_writer_that_continues_is_refused(broker, staging):
    lost = opened(staging)
    lost.write(ROWS)
    prepared = lost.prepare(1)
    opened(staging, generation=1)
    with pytest.raises(SinkError, match=r"sink 'out' .* generation 1 of the job has replaced this one, 0\."):
        lost.commit(prepared)
    assert numbers(broker) == []
    assert list(broker.epochs.values()) == [2]


def test_writer_of_an_earlier_generation_does_not_take_over(broker, staging):
    running = opened(staging, generation=2)
    with pytest.raises(SinkError, match="generation 2 of the job has replaced this one, 1"):
        opened(staging, generation=1)
    running.write(ROWS)
    running.commit(running.prepare(1))
    assert numbers(broker) == [1, 2, 3]
    assert list(broker.epochs.values()) == [1]


@pytest.mark.parametrize("when", ["at its start", "in its recovery"])
def test_writer_takes_the_id_back_from_an_earlier_one_that_was_suspended_while_it_took_over(broker, staging, when):
    first = opened(staging)
    first.write(ROWS)
    prepared, running = first.prepare(1), []
    # The rows are of an instance whose node is lost, so a writer takes over that id when it recovers.
    hung = opened(staging, generation=1, instance=1) if when == "in its recovery" else None
    broker.suspended.append(lambda: running.append(opened(staging, generation=2)))
    with pytest.raises(SinkError, match="generation 2 of the job has replaced this one, 1"):
        opened(staging, generation=1) if hung is None else hung.recover([prepared], 1)
    [writer] = running
    writer.recover([prepared], 1)
    assert numbers(broker) == [1, 2, 3]
    writer.write(ROWS)
    second = writer.prepare(2)
    writer.commit(second)
    writer.commit(second)
    assert numbers(broker) == [1, 2, 3, 1, 2, 3]
    assert broker.epochs["dask_elastic-job-out-r-0"] == 4


def test_writer_whose_client_begins_no_transaction_any_more_takes_the_id_back(broker, staging, monkeypatch):
    """The client library may know already, from a call in the background, that another writer has the id."""

    def begin_transaction(producer):
        producer._check()
        begin(producer)

    begin = Producer.begin_transaction
    monkeypatch.setattr(Producer, "begin_transaction", begin_transaction)
    writer = opened(staging, generation=1)
    writer.write(ROWS)
    [identity] = broker.epochs
    broker.epochs[identity] += 1
    writer.commit(writer.prepare(1))
    assert numbers(broker) == [1, 2, 3]
    assert broker.epochs == {identity: 3}


def test_two_writers_of_one_generation_do_not_take_the_id_from_each_other_for_ever(broker, staging, monkeypatch):
    writer = opened(staging, generation=1)
    writer.write(ROWS)
    prepared = writer.prepare(1)
    takes = []

    def begin_transaction(producer):
        takes.append(producer.epoch)
        opened(staging, generation=1)
        producer.open, producer.offsets = [], {}

    monkeypatch.setattr("transactional_broker.Producer.begin_transaction", begin_transaction)
    with pytest.raises(SinkError, match="cannot send a message: fenced"):
        writer.commit(prepared)
    assert len(takes) == kafka_transactions.TAKEOVERS
    monkeypatch.undo()
    assert numbers(broker) == []


def test_recovery_deletes_only_what_earlier_generations_of_the_instance_have_staged(broker, staging, tmp_path):
    for generation, instance in ((0, 0), (0, 1), (1, 0), (2, 0)):
        writer = opened(staging, generation, instance)
        writer.write(ROWS)
        writer.prepare(1)
    # What the other instance has prepared may not be committed yet.
    opened(staging, generation=2).recover([], 1)
    assert files(tmp_path) == ["out-0-g2-c0-0.arrows", "out-1-g0-c0-0.arrows"]
    dropped = opened(staging, generation=3, instance=1)
    dropped.write(ROWS)
    dropped._stage()
    dropped.abort()
    assert files(tmp_path) == ["out-0-g2-c0-0.arrows", "out-1-g0-c0-0.arrows"]


def test_recovery_deletes_what_lost_instances_have_staged_for_an_incomplete_checkpoint(broker, staging, tmp_path):
    lost, running = opened(staging, instance=7), opened(staging, generation=1, instance=8)
    lost.write(ROWS)
    prepared = lost.prepare(1)
    for writer in (lost, running):
        writer.write(ROWS)
        writer.prepare(2)
    opened(staging, generation=1).recover([], 1)
    assert files(tmp_path) == ["out-7-g0-c0-0.arrows", "out-8-g1-c0-0.arrows"]
    opened(staging, generation=1, instance=1).recover([prepared], 1)
    assert files(tmp_path) == ["out-8-g1-c0-0.arrows"]
    assert len(numbers(broker)) == ROWS.num_rows


def test_missing_rows_of_a_forgotten_commit_are_a_warning_and_damaged_ones_an_error(broker, staging, tmp_path, caplog):
    writer = opened(staging)
    writer.write(ROWS)
    prepared = writer.prepare(1)
    [path] = tmp_path.glob("staged/*")
    contents = path.read_bytes()
    path.write_bytes(bytes(len(contents)))
    with pytest.raises(CheckpointCorrupt):
        writer.commit(prepared)
    path.write_bytes(contents)
    writer.commit(prepared)
    # The brokers forget the offsets of groups without members after a week.
    broker.offsets.clear()
    writer.commit(prepared)
    assert numbers(broker) == [1, 2, 3]
    assert "the staged rows of checkpoint 1 are missing" in caplog.text


def test_rows_before_the_checkpoint_go_to_the_topic_of_before(broker, staging):
    writer = opened(staging)
    prepared = []
    for checkpoint in (1, 2):
        writer.write(ROWS)
        prepared.append(writer.prepare(checkpoint))
    writer.commit(prepared[0])
    now = sinks.Kafka("late", "broker", guarantee="exactly-once")
    context = SinkContext("job", "out", run="r", checkpoints=True, generation=1, restored=True, staging=staging)
    writer = now.open(context)
    writer.recover(prepared, 2)
    writer.write(ROWS)
    writer.commit(writer.prepare(3))
    assert numbers(broker) == [1, 2, 3, 1, 2, 3]
    assert len(broker.messages["late"]) == 3


def test_rows_that_were_staged_are_sent_once_after_a_change_to_at_least_once(broker, staging, tmp_path):
    writer = opened(staging)
    writer.write(ROWS)
    prepared = writer.prepare(1)
    context = SinkContext("job", "out", run="r", checkpoints=True, generation=1, restored=True, staging=staging)
    for _ in range(2):
        sinks.Kafka("delays", "broker").open(context).recover([prepared], 1)
    assert numbers(broker) == [1, 2, 3]
    assert files(tmp_path) == []


def test_message_that_brokers_would_refuse_fails_before_the_checkpoint(broker, staging):
    writer = opened(staging, options={"message.max.bytes": 2_000})
    with pytest.raises(SinkError, match=r"a message of 2,0\d\d bytes is larger than message.max.bytes"):
        writer.write(pa.RecordBatch.from_pydict({"text": ["x" * 2_000]}))


def test_unknown_guarantee_is_refused_and_jobs_without_checkpoints_send_at_once(broker):
    with pytest.raises(TopologyError, match="guarantee is 'once'; choose 'at-least-once' or 'exactly-once'"):
        sinks.Kafka("delays", "broker", guarantee="once")
    sink = sinks.Kafka("delays", "broker", guarantee="exactly-once")
    assert (sink.promise, repr(sink)) == ("exactly-once", "Kafka('delays', guarantee=\"exactly-once\")")
    assert sinks.Kafka("delays", "broker").promise == "at-least-once"


def test_client_library_accepts_the_transaction_on_its_mock_cluster(staging):
    cluster = KafkaCluster()
    writer = opened(staging, servers=cluster.servers, options={"log_level": 0})
    writer.write(ROWS)
    writer.commit(writer.prepare(1))
    assert sorted(json.loads(message.value())["n"] for message in cluster.received("delays")) == [1, 2, 3]
