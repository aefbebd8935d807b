"""Dask at the ends of jobs: queues to clients and other jobs, collections as sources, state as a collection."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client, Event, Queue, Variable

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.vocab.errors import (
    ElasticError,
    JobStopped,
    NodeLost,
    SchemaMismatch,
    SinkError,
    TopologyError,
    UnknownJob,
    UnknownOperator,
)

ROWS = 20_000
NUMBERS = pa.table({"n": pa.array(range(ROWS), pa.int64())})
SIZE = 2_000
FRAME = pd.DataFrame({"k": np.arange(SIZE) % 13, "v": np.arange(SIZE) / 4, "word": [f"w{n % 7}" for n in range(SIZE)]})
VALUES = {"rows": agg.Count(), "least": agg.Min("v")}
AGGREGATES = {"rows": agg.Count(), "mean": agg.Mean("v"), "last": agg.Max("word")}


def writing(name, queue, limit=4, function=lambda batch: batch):
    topology = de.Topology(name)
    numbers = topology.source("numbers", de.sources.Arrow(NUMBERS, batch_rows=1000, rate=100_000)).map(function)
    numbers.sink(de.sinks.DaskQueue(queue, limit=limit), name="out")
    return topology


def test_client_reads_output_queue_of_job(client):
    de.submit(writing("out", "numbers"), client)
    assert sorted(n for rows in de.read_queue("numbers", client) for n in rows["n"].to_pylist()) == list(range(ROWS))


def test_any_client_gets_small_batches_as_arrow_and_takes_none_from_the_reader(client, wait_until):
    small = de.Topology("small")
    numbers = small.source("numbers", de.sources.Arrow(NUMBERS.slice(0, 2_000), batch_rows=1000, rate=1e6))
    numbers.sink(de.sinks.DaskQueue("small"), name="out")
    job = de.submit(small, client)
    entry = Queue("small", client=client).get(timeout="100s")
    assert type(entry) is bytes
    with pa.ipc.open_stream(entry) as reader:
        assert reader.read_next_batch()["n"][0].as_py() == 0
    assert sum(rows.num_rows for rows in de.read_queue("small", client)) == 2_000
    job.wait(100, progress=False)
    assert Queue("small", client=client).qsize() == 0, "copies of what was taken are removed"


def test_any_client_fetches_large_batches_by_their_handles(client):
    large = de.Topology("large")
    # A single row is never cut.
    text = pa.table({"text": ["long " * 20_000]})
    rows = large.source("rows", de.sources.Push(text.schema))
    rows.sink(de.sinks.DaskQueue("large"), name="out")
    job = de.submit(large, client)
    job.send(text)
    entry = Queue("large", client=client).get(timeout="100s")
    assert isinstance(entry, de.QueueRows)
    assert (entry.queue, entry.number, entry.rows) == ("large", 1, 1)
    assert entry.nbytes > 100_000
    assert entry.fetch("100s", client).to_pylist() == text.to_pylist()

    async def fetch():
        async with Client(client.scheduler.address, asynchronous=True, set_as_default=False) as other:
            return await entry.afetch(100, other)

    assert asyncio.run(fetch()).num_rows == 1
    with pytest.raises(TimeoutError, match=r"1 rows of queue 'large', batch 1: worker .* has not answered"):
        entry.fetch(1e-9, client)
    job.end_of_input()
    assert sum(rows.num_rows for rows in de.read_queue("large", client)) == 1
    with pytest.raises(SinkError, match=r"batch 1: .*another reader has taken it"):
        entry.fetch(100, client)
    job.forget()
    with pytest.raises(NodeLost, match=r"are lost: worker .* no longer hosts"):
        entry.fetch(100, client)
    with pytest.raises(NodeLost, match=r"are lost: worker tcp://127\.0\.0\.1:1, which held them for job 'large'"):
        dataclasses.replace(entry, address="tcp://127.0.0.1:1").fetch("100s", client)


def test_clients_share_a_queue_and_make_room_by_getting_from_it(client):
    topology = de.Topology("shared")
    numbers = topology.source("numbers", de.sources.Arrow(NUMBERS, batch_rows=1000))
    numbers.sink(de.sinks.DaskQueue("work", limit=2, taken_by="get"), name="out")
    queue = Queue("work", client=client)
    with ThreadPoolExecutor(1) as pool:
        # A client may wait before the job exists.
        first = pool.submit(queue.get, timeout="100s")
        job = de.submit(topology, client)
        entry = first.result(100)
    count = 0
    while True:
        with pa.ipc.open_stream(entry) as reader:
            count += reader.read_next_batch().num_rows
        if count == ROWS:
            break
        entry = queue.get(timeout="100s")
    job.wait(100, progress=False)
    assert queue.qsize() == 0
    assert list(de.read_queue("work", client)) == [], "nothing is held any more"


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
    second.wait(240, progress=False)
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


@pytest.mark.parametrize(
    "options", [{"name": ""}, {"name": "q", "limit": 0}, {"name": "q", "limit": True}, {"name": "q", "taken_by": "me"}]
)
def test_submit_with_wrong_queue_sink_is_refused(options):
    with pytest.raises(TopologyError):
        de.sinks.DaskQueue(**options)


@pytest.mark.parametrize("arguments", [("", NUMBERS.schema), ("q", {"n": "int"}), ("q", pa.schema([]))])
def test_submit_with_wrong_queue_source_is_refused(arguments):
    with pytest.raises(TopologyError):
        de.sources.DaskQueue(*arguments)


def submitted(client, source, name="frames", aggregates=AGGREGATES):
    topology = de.Topology(name)
    rows = topology.source("rows", source)
    rows.key_by("k").compute(aggregates, name="per_key").sink(de.sinks.Collect(), name="out")
    return de.submit(topology, client, cores={"per_key": 1})


def result_of(job):
    job.wait(timeout="240s", progress=False)
    return job.state("per_key").to_pandas().sort_values("k", ignore_index=True)


def expected(frame=FRAME):
    grouped = frame.groupby("k").agg(rows=("v", "size"), mean=("v", "mean"), last=("word", "max"))
    return grouped.reset_index()


COLLECTIONS = {
    "frame": lambda: dd.from_pandas(FRAME, npartitions=5),
    "task shuffle": lambda: dd.from_pandas(FRAME, npartitions=5).shuffle("word", shuffle_method="tasks"),
    "p2p shuffle": lambda: dd.from_pandas(FRAME, npartitions=5).shuffle("word", shuffle_method="p2p"),
    "persisted": lambda: dd.from_pandas(FRAME, npartitions=5).persist(),
    "bag": lambda: db.from_sequence(FRAME.to_dict("records"), npartitions=5),
}


@pytest.mark.parametrize(
    ("kind", "parallel"), [("frame", 1), ("task shuffle", 1), ("p2p shuffle", 2), ("persisted", 1), ("bag", 2)]
)
def test_job_over_dask_collection_matches_pandas(client, kind, parallel):
    collection = COLLECTIONS[kind]()
    job = submitted(client, de.sources.from_dask(collection, parallel=parallel))
    pd.testing.assert_frame_equal(result_of(job), expected(), check_dtype=False)


def noted(part: pd.DataFrame, name: str) -> pd.DataFrame:
    """Log that a partition is computed."""
    from distributed import get_worker

    if len(part):
        get_worker().log_event(name, int(part["k"].iloc[0]))
    return part


def computed(client: Client, name: str) -> list[int]:
    return [number for _, number in client.get_events(name)]


def test_partitions_are_computed_one_ahead_of_a_job_that_waits(client, wait_until):
    frame = pd.DataFrame({"k": np.arange(10), "v": 1.0})
    collection = dd.from_pandas(frame, npartitions=10).map_partitions(noted, "one ahead", meta=frame.iloc[:0])
    # One row per hour: the job takes the first row, and the reader waits until the next one is due.
    job = submitted(client, de.sources.from_dask(collection, rate=1 / 3600), aggregates={"rows": agg.Count()})
    wait_until(lambda: len(computed(client, "one ahead")) >= 2, "two partitions are computed")
    wait_until(lambda: job.metrics()["rows"].sum() == 1, "the first row is processed")
    assert set(computed(client, "one ahead")) <= {0, 1, 2}
    job.stop()
    with pytest.raises(JobStopped):
        job.wait(timeout="240s", progress=False)


def test_partitions_before_a_shuffle_are_computed_once(client):
    frame = pd.DataFrame({"k": np.arange(6), "v": 1.0})
    collection = dd.from_pandas(frame, npartitions=6).map_partitions(noted, "once", meta=frame.iloc[:0])
    source = de.sources.from_dask(collection.shuffle("v", shuffle_method="tasks"))
    assert result_of(submitted(client, source, aggregates={"rows": agg.Count()}))["rows"].tolist() == [1] * 6
    assert sorted(computed(client, "once")) == [0, 1, 2, 3, 4, 5]


def test_job_stops_while_a_partition_is_computed(client, wait_until):
    frame = pd.DataFrame({"k": [1], "v": [1.0]})

    def held_up(part: pd.DataFrame) -> pd.DataFrame:
        if len(part):
            Variable("computing").set(True)
            Event("go on").wait(timeout=60)
        return part

    collection = dd.from_pandas(frame, npartitions=1).map_partitions(held_up, meta=frame.iloc[:0])
    job = submitted(client, de.sources.from_dask(collection), aggregates={"rows": agg.Count()})
    Variable("computing", client).get(timeout=240)
    job.stop()
    with pytest.raises(JobStopped):
        job.wait(timeout="240s", progress=False)
    assert len(job.state("per_key").to_arrow()) == 0
    Event("go on", client).set()


def test_job_fails_with_the_error_of_a_partition(client):
    def broken(part: pd.DataFrame) -> pd.DataFrame:
        if len(part) and part["k"].iloc[0] == 1:
            raise ZeroDivisionError("user error")
        return part

    frame = pd.DataFrame({"k": [0, 1], "v": 1.0})
    collection = dd.from_pandas(frame, npartitions=2).map_partitions(broken, meta=frame.iloc[:0])
    job = submitted(client, de.sources.from_dask(collection), aggregates={"rows": agg.Count()})
    with pytest.raises(de.ElasticError, match="partition 1 could not be computed: ZeroDivisionError: user error"):
        job.wait(timeout="240s", progress=False)


def test_job_outlives_the_client_that_persisted_its_collection(cluster, client, wait_until):
    with Client(cluster, set_as_default=False) as other:
        collection = other.persist(dd.from_pandas(FRAME, npartitions=4))
        job = submitted(other, de.sources.from_dask(collection, rate=SIZE / 2), name="outlives")
        wait_until(lambda: job.metrics()["rows"].sum() > 0, "rows are processed")
    job = de.job("outlives", client)
    pd.testing.assert_frame_equal(result_of(job), expected(), check_dtype=False)


def test_state_of_finished_job_is_a_dask_frame(client):
    job = submitted(client, de.sources.Arrow(pa.table(FRAME)))
    table = result_of(job)
    frame = job.state("per_key").to_dask()
    assert frame.npartitions == len(job.metrics()["executor"])
    assert dict(frame.dtypes) == dict(frame.compute().dtypes)
    assert str(frame.dtypes["rows"]) == "int64[pyarrow]"
    found = frame.compute().sort_values("k", ignore_index=True)
    pd.testing.assert_frame_equal(found, table, check_dtype=False)
    assert frame["rows"].sum().compute() == SIZE
    joined = dd.from_pandas(pd.DataFrame({"k": [3], "name": ["three"]}), npartitions=1).merge(
        frame.astype({"k": "int64"}), on="k"
    )
    assert joined["rows"].compute().tolist() == [len(FRAME[FRAME["k"] == 3])]


def test_state_frame_of_running_job_reads_anew(client, wait_until):
    job = submitted(client, de.sources.Push(pa.schema({"k": pa.int64(), "v": pa.float64()})), aggregates=VALUES)
    frame = job.state("per_key").to_dask()
    assert frame.compute().empty
    job.send(pa.table({"k": [1, 2], "v": [0.5, None]}))
    wait_until(lambda: frame["rows"].sum().compute() == 2, "two rows are in the state")
    job.send(pa.table({"k": [1], "v": [0.25]}))
    wait_until(lambda: frame["rows"].sum().compute() == 3, "the third row is in the state")
    found = frame.compute().sort_values("k", ignore_index=True)
    assert found[["k", "rows"]].to_dict("list") == {"k": [1, 2], "rows": [2, 1]}
    assert found["least"].isna().tolist() == [False, True]
    job.end_of_input()
    job.wait(timeout="240s", progress=False)
    assert dict(frame.dtypes) == dict(found.dtypes)


def test_state_frame_of_forgotten_or_replaced_job_raises(client):
    job = submitted(client, de.sources.Arrow(pa.table(FRAME)))
    job.wait(timeout="240s", progress=False)
    frame = job.state("per_key").to_dask()
    with pytest.raises(UnknownOperator, match="'nothing'"):
        job.state("nothing").to_dask()
    job.forget()
    with pytest.raises(UnknownJob, match="frames"):
        frame.compute()
    submitted(client, de.sources.Arrow(pa.table(FRAME))).wait(timeout="240s", progress=False)
    with pytest.raises(UnknownJob, match=r"'frames' was submitted again .*call to_dask\(\)"):
        frame.compute()


def test_state_frame_made_before_types_are_known_says_so(client, wait_until):
    topology = de.Topology("untyped")
    rows = topology.source("rows", de.sources.Push(pa.schema({"k": pa.int64()}))).map(lambda batch: batch)
    rows.key_by("k").compute({"rows": agg.Count()}, name="per_key").sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client, cores={"per_key": 1})
    early = job.state("per_key").to_dask()
    job.send(pa.table({"k": [1]}))
    job.end_of_input()
    job.wait(timeout="240s", progress=False)
    with pytest.raises(SchemaMismatch, match=r"column 'k': int64 instead of null.*call to_dask"):
        early.compute()
    assert job.state("per_key").to_dask().compute().to_dict("list") == {"k": [1], "rows": [1]}
