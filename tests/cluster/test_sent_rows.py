"""`Job.send` takes tables of every kind, casts them to the source's schema, and refuses what does not fit by itself."""

from __future__ import annotations

import asyncio
import threading

import pandas as pd
import pyarrow as pa
import pytest
from counting_jobs import RUN
from distributed import Client

import dask_elastic as de
from dask_elastic.vocab.errors import JobFailed, SchemaMismatch, UserCodeError

SCHEMA = pa.schema({"n": pa.int64(), "word": pa.string()})
ROWS = {"n": [1, 2], "word": ["a", "b"]}


class Exported:
    """A frame of another library: it has Arrow's PyCapsule interface and nothing else."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def words(client, source=de.sources.Push, name="words"):
    """A job that collects the words and numbers that are pushed to it."""
    topology = de.Topology(name)
    topology.source("rows", source(SCHEMA)).sink(de.sinks.Collect(), name="out")
    return de.submit(topology, client)


def collected(job):
    job.end_of_input()
    job.wait(**RUN)
    return job.collect("out")


OTHERS = {
    "dict": ROWS,
    "frame": pd.DataFrame(ROWS, index=[7, 8]),
    "stream": Exported(pa.table(ROWS)),
    "large": pa.table(ROWS, pa.schema({"n": pa.int32(), "word": pa.large_string()})),
    "views": Exported(pa.table(ROWS, pa.schema({"n": pa.uint8(), "word": pa.string_view()}))),
    "encoded": pa.table({"n": pa.array([1.0, 2.0]), "word": pa.array(["a", "b"]).dictionary_encode()}),
    "order": pa.record_batch({"word": ["a", "b"], "n": [1, 2]}),
}


def test_rows_of_every_kind_are_cast_to_the_schema(client):
    job = words(client)
    for rows in OTHERS.values():
        job.send(rows)
    asyncio.run(job.asend(OTHERS["large"]))
    table = collected(job)
    assert table.schema == SCHEMA
    assert table.to_pylist() == pa.table(ROWS).to_pylist() * (len(OTHERS) + 1)


MISFITS = {
    "kind": ({"n": ["one"], "word": ["a"]}, r"column 'n': string instead of int64.*columns n: int64, word: string"),
    "value": ({"n": [1.5], "word": ["a"]}, r"column 'n' is double and must be int64, .*1\.500000 was truncated"),
    "missing": ({"n": [1]}, "missing: 'word'"),
    "unexpected": ({"n": [1], "word": ["a"], "x": [0]}, "unexpected: 'x'"),
    "large": (pa.table({"n": pa.array([2**63], pa.uint64()), "word": ["a"]}), "'n' is uint64 and must be int64"),
}


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "scheduler"])
def test_misfits_are_refused_alone_and_the_job_goes_on(cluster, direct):
    with Client(cluster, set_as_default=False, direct_to_workers=direct) as client:
        job = words(client)
        for rows, difference in MISFITS.values():
            with pytest.raises(SchemaMismatch, match=f"rows sent to source 'rows' of job 'words': .*{difference}"):
                job.send(rows)
            with pytest.raises(SchemaMismatch):
                asyncio.run(job.asend(rows))
            job.send(ROWS)
        assert collected(job).to_pylist() == pa.table(ROWS).to_pylist() * len(MISFITS)
        job.forget()


def test_rows_are_refused_as_a_whole(client):
    job = words(client)
    parts = [pa.record_batch({"n": [number], "word": ["a"]}) for number in (1.0, 2.5)]
    with pytest.raises(SchemaMismatch):
        job.send(pa.Table.from_batches(parts))
    job.send(ROWS)
    assert collected(job)["n"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("rows", "error"), [([1, 2], TypeError), ({"n": [1], "word": []}, ValueError), (pa.array([1]), TypeError)]
)
def test_what_is_no_table_is_refused(client, rows, error):
    with pytest.raises(error, match=r"^send"):
        words(client).send(rows)


def test_source_without_declared_schema_gets_rows_as_they_are(client):
    class AnyRows(de.sources.Push):
        def __init__(self, schema):
            super().__init__(schema)
            self.sent_schema = None

        def accept(self, rows):
            return rows

    job = words(client, source=AnyRows)
    job.send(OTHERS["large"])
    assert collected(job).schema == OTHERS["large"].schema


def test_job_submitted_anew_has_rows_cast_to_its_own_schema(client):
    job = words(client)
    job.send(ROWS)
    job.stop()
    topology = de.Topology("words")
    other = pa.schema({"n": pa.string(), "word": pa.string()})
    topology.source("rows", de.sources.Push(other)).sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client)
    with pytest.raises(SchemaMismatch, match="int64 instead of string"):
        job.send(ROWS)
    job.send({"n": ["1"], "word": ["a"]})
    assert collected(job).schema == other


def test_few_rows_are_processed_in_the_thread_of_their_connection(cluster, client, wait_until):
    def with_thread(rows):
        if min(rows["n"].to_pylist()) < 0:
            raise ValueError("no such number")
        names = [threading.current_thread().name] * rows.num_rows
        return pa.record_batch({"sender": rows["sender"], "n": rows["n"], "thread": names})

    topology = de.Topology("short")
    sent = topology.source("rows", de.sources.Push(pa.schema({"sender": pa.int64(), "n": pa.int64()})))
    rows = sent.map(with_thread, name="tidy")
    rows.sink(de.sinks.Collect(), name="out")
    rows.key_by("sender").compute({"total": de.aggregate.Sum("n")}, name="summed", executors=1)
    job = de.submit(topology, client)
    with Client(cluster, set_as_default=False) as other:
        handles, number = (job, de.job("short", other)), 0

        def are_passed():
            nonlocal number
            for _ in range(20):
                for sender, handle in enumerate(handles):
                    handle.send({"sender": [sender], "n": [number]})
                number += 1
            return any(row["thread"] == "elastic-reader" for row in job.collect("out").to_pylist())

        wait_until(are_passed, "rows are passed on by the thread that receives them")
        for handle in handles:
            handle.flush(timeout=100)
        wait_until(lambda: job.collect("out").num_rows == 2 * number, "all rows are written")
        found = job.collect("out").to_pylist()
        for sender in range(2):
            assert [row["n"] for row in found if row["sender"] == sender] == list(range(number))
        totals = {0: sum(range(number)), 1: sum(range(number))}
        wait_until(
            lambda: dict(zip(*job.state("summed").to_arrow().to_pydict().values(), strict=True)) == totals, "sums"
        )
    job.send({"sender": [0], "n": [-1]})
    with pytest.raises(UserCodeError, match=r"operator 'tidy'.*no such number"):
        wait_until(lambda: job.send({"sender": [0], "n": [0]}), "the error is raised")
    with pytest.raises(JobFailed):
        job.wait(**RUN)
