"""Workers with sources and sinks leave a running job, which restarts elsewhere: each row is counted and shown once."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from distributed import Client

import dask_elastic as de
from dask_elastic.spark.staging_connection import end_source
from dask_elastic.vocab.errors import PlanningError

sys.path.insert(0, str(Path(__file__).parents[1] / "durability"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from epoch_writer import EpochWriter
from followed_jobs import ROWS, Gated, assert_each_row_once, counted, expected, newest
from oracle import SCHEMA, STATE, following

del sys.path[:2]


def shown_twice(out, calls, gate):
    """A topology with two sources that end when a gate is open, and the rows in files and in calls, at least once."""
    topology = de.Topology("left")
    source = Gated(ROWS, gate, rate=8_000, parallel=2, batch_rows=700)
    rows = topology.source("rows", source).key_by("k")
    followed = rows.compute(following(), name="followed", state=STATE, executors=2, shards=16)
    followed.sink(de.sinks.Parquet(out), name="out")
    followed.sink(de.sinks.Call(noting(calls)), name="calls")
    return topology


def noting(folder):
    """Return a function for a sink that notes the rows that it gets; it promises them at least once."""
    folder.mkdir()

    def note(batch):
        with (folder / f"{os.getpid()}-{threading.get_ident()}").open("a") as file:
            file.write(json.dumps([*zip(batch["k"].to_pylist(), batch["seq"].to_pylist(), strict=True)]) + "\n")

    return note


def noted(folder):
    """Return the rows that were noted, sorted."""
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
    return sorted(tuple(row) for line in lines for row in json.loads(line))


def described(job):
    """Return where the job stands with its checkpoints."""
    return job._describe().checkpoints


def test_workers_with_sources_and_sinks_leave_one_after_the_other(small_cluster, wait_until, tmp_path):
    cluster = small_cluster(n_workers=3, threads_per_worker=2, processes=False)
    out, calls, gate = (tmp_path / name for name in ("out", "calls", "gate"))
    with Client(cluster, set_as_default=False) as client:
        topology = shown_twice(out, calls, gate)
        job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="300ms")
        job.set_cores("followed", 2)
        wait_until(lambda: newest(job) >= 1, "a checkpoint is complete")
        first, second = job.assignment()["home"].drop_duplicates()[:2]
        de.retire(first, client, timeout="100s", close=True)
        assert first not in job._describe().nodes
        assert job.status == "running"
        assert described(job).restarts == 1
        assert set(job.metrics()["cores"]) <= {2}
        left = f"Worker {first} is to leave. The job was restarted from checkpoint "
        assert job.decisions()["reason"].str.startswith(left).sum() == 1
        assert list(client.retire_workers([second], close_workers=True)) == [second]
        wait_until(lambda: len(client.nthreads()) == 1, "both workers have left the cluster")
        assert described(job).restarts == 2
        [last] = client.nthreads()
        with pytest.raises(PlanningError, match="no other worker is left for rows"):
            de.retire(last, client)
        gate.touch()
        job.wait(100, progress=False)
        assert counted(job) == expected()
        assert_each_row_once(out)
        assert noted(calls) == sorted(zip(ROWS["k"].to_pylist(), ROWS["seq"].to_pylist(), strict=True))


def numbered(first, last):
    """Rows of one key, numbered as `following` expects them."""
    numbers = pa.array(range(first, last), pa.int64())
    return pa.table({"k": pa.array([1] * len(numbers), pa.int64()), "v": numbers, "seq": numbers}, schema=SCHEMA)


def accepting():
    """A topology that tracks the order of the rows of each source that accepts rows."""
    made = de.Topology("accepting")
    kinds = {"sent": de.sources.Push(SCHEMA), "queued": de.sources.DaskQueue("between", SCHEMA)}
    for name, source in {**kinds, "spark": de.sources.Spark(SCHEMA)}.items():
        options = {"name": f"followed_{name}", "state": STATE, "executors": 1}
        made.source(name, source).key_by("k").compute(following(), **options)
    return made


def test_sources_that_accept_rows_leave_with_what_they_have_accepted(small_cluster, tmp_path):
    """Rows are taken once, also those that pass through a queue from a job that leaves as well."""
    cluster = small_cluster(n_workers=4, threads_per_worker=2, processes=False)
    with Client(cluster, set_as_default=False) as client:
        writing = de.Topology("writing")
        writing.source("rows", de.sources.Push(SCHEMA)).sink(de.sinks.DaskQueue("between"), name="out")
        writer = de.submit(writing, client, checkpoint=tmp_path / "writing", checkpoint_interval="300ms")
        job = de.submit(accepting(), client, checkpoint=tmp_path / "accepting", checkpoint_interval="300ms")
        epochs = EpochWriter(client, job.name)
        count = 0
        for leaving in [*sorted(client.nthreads())[:3], None]:
            for _ in range(4):
                writer.send(numbered(count, count + 25))
                job.send(numbered(count, count + 25), source="sent")
                epochs.send(count // 25, numbered(count, count + 25))
                count += 25
            if leaving is not None:
                de.retire(leaving, client, timeout="100s")
        writer.end_of_input()
        job.end_of_input(source="sent")
        end_source(epochs.target)
        job.wait(100, progress=False)
        assert described(job).restarts >= 1
        assert described(writer).restarts >= 1
        for name in ("sent", "queued", "spark"):
            [state] = job.state(f"followed_{name}").to_arrow().to_pylist()
            assert (name, state["n"], state["sum"], state["faults"]) == (name, count, sum(range(count)), 0)
