"""Queues between a job and a client, and between two jobs, on a real cluster."""

from __future__ import annotations

import pyarrow as pa
import pytest
from distributed import Queue

import dask_elastic as de
from dask_elastic.vocab.errors import ElasticError, SinkError, TopologyError

ROWS = 20_000
NUMBERS = pa.table({"n": pa.array(range(ROWS), pa.int64())})


def writing(name, queue, limit=4, function=lambda batch: batch):
    topology = de.Topology(name)
    numbers = topology.source("numbers", de.sources.Arrow(NUMBERS, batch_rows=1000, rate=100_000)).map(function)
    numbers.sink(de.sinks.DaskQueue(queue, limit=limit), name="out")
    return topology


def test_client_reads_output_queue_of_job(client):
    de.submit(writing("out", "numbers"), client)
    assert sorted(n for rows in de.read_queue("numbers", client) for n in rows["n"].to_pylist()) == list(range(ROWS))


def test_job_with_full_output_queue_waits_for_reader(client, wait_until):
    job = de.submit(writing("waits", "waiting", limit=2), client)
    wait_until(lambda: Queue("waiting", client=client).qsize() == 2, "the queue is full")
    assert job.status == "running"
    assert sum(rows.num_rows for rows in de.read_queue("waiting", client)) == ROWS
    job.wait(100, progress=False)


def test_unacknowledged_batches_are_reread_after_dask_queue_is_drained(client, wait_until):
    de.submit(writing("again", "again", limit=2), client)
    wait_until(lambda: Queue("again", client=client).qsize() == 2, "the queue is full")
    Queue("again", client=client).get(batch=True)
    dying = de.read_queue("again", client)
    first = next(dying)
    dying.close()
    batches = list(de.read_queue("again", client))
    assert batches[0].equals(first)
    assert sum(rows.num_rows for rows in batches) == ROWS


def test_queue_of_one_job_feeds_another_job(client):
    topology = de.Topology("second")
    numbers = topology.source("numbers", de.sources.DaskQueue("between", NUMBERS.schema))
    numbers.sink(de.sinks.Collect(), name="kept")
    second = de.submit(topology, client)
    de.submit(writing("first", "between"), client)
    second.wait(60, progress=False)
    assert sorted(second.collect("kept")["n"].to_pylist()) == list(range(ROWS))


def test_queue_reader_raises_error_of_failed_job(client):
    def fail(batch):
        raise ValueError("no numbers today")

    de.submit(writing("fails", "failing", function=fail), client)
    with pytest.raises(ElasticError, match="no numbers today"):
        list(de.read_queue("failing", client))


def test_second_writer_of_a_queue_is_refused(client, wait_until):
    de.submit(writing("one", "shared", limit=1), client)
    wait_until(lambda: Queue("shared", client=client).qsize() == 1, "the first job writes")
    other = de.submit(writing("two", "shared"), client)
    wait_until(lambda: other.status == "failed", "the second is refused")
    assert isinstance(other.error, SinkError)
    assert "is written by job 'one'" in str(other.error)


@pytest.mark.parametrize("options", [{"name": ""}, {"name": "q", "limit": 0}, {"name": "q", "limit": True}])
def test_submit_with_wrong_queue_sink_is_refused(options):
    with pytest.raises(TopologyError):
        de.sinks.DaskQueue(**options)


@pytest.mark.parametrize("arguments", [("", NUMBERS.schema), ("q", {"n": "int"}), ("q", pa.schema([]))])
def test_submit_with_wrong_queue_source_is_refused(arguments):
    with pytest.raises(TopologyError):
        de.sources.DaskQueue(*arguments)
