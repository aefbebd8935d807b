"""A savepoint of a job with all kinds of sources that accept rows: after a stop, no row is lost or taken twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from counting_jobs import RUN

import dask_elastic as de
from dask_elastic.spark.staging_connection import end_source
from dask_elastic.vocab.errors import SubmitError

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from epoch_writer import EpochWriter
from oracle import SCHEMA, STATE, following

del sys.path[:2]

COUNT = 300
SOURCES = ("sent", "queued", "spark")


def table(first, last):
    """Rows of one key, numbered as `following` expects them."""
    numbers = pa.array(range(first, last), pa.int64())
    return pa.table({"k": pa.array([1] * len(numbers), pa.int64()), "v": numbers, "seq": numbers}, schema=SCHEMA)


def topology(rate=None, parallel=1, names=SOURCES, **changed):
    """Track the order of the rows of each source by itself."""
    made = de.Topology("accepting")
    sources = {
        "sent": de.sources.Push(SCHEMA, rate=rate),
        "queued": de.sources.DaskQueue("between", SCHEMA, rate=rate),
        "spark": de.sources.Spark(SCHEMA, rate=rate, parallel=parallel),
    }
    sources |= changed
    for name in names:
        options = {"name": f"followed_{name}", "state": STATE, "executors": 1}
        made.source(name, sources[name]).key_by("k").compute(following(), **options)
    return made


def states(job):
    found = {name: job.state(f"followed_{name}").to_arrow().to_pylist() for name in SOURCES}
    return {name: [(row["n"], row["sum"], row["faults"]) for row in rows] for name, rows in found.items()}


def test_stop_with_savepoint_loses_no_row_that_a_source_has_accepted(client, wait_until, tmp_path):
    own, savepoint, new = tmp_path / "own", tmp_path / "savepoint", tmp_path / "new"
    writing = de.Topology("writing")
    writing.source("rows", de.sources.Push(SCHEMA)).sink(de.sinks.DaskQueue("between"), name="out")
    writer = de.submit(writing, client)
    job = de.submit(topology(rate=10), client, checkpoint=own, checkpoint_interval="300ms")
    for first in range(0, COUNT, 50):
        writer.send(table(first, first + 50), wait=True)
        job.send(table(first, first + 50), source="sent", wait=True)
    EpochWriter(client, job.name).send(0, table(0, COUNT))
    wait_until(lambda: job.metrics()["rows"].sum() > 0, "rows are processed")
    job.stop(savepoint=savepoint)
    for name in SOURCES:
        assert (pc.sum(de.read_state(savepoint, f"followed_{name}")["n"]).as_py() or 0) < COUNT
    with pytest.raises(SubmitError, match="'spark' has 2 instances, and 1 in checkpoint"):
        de.resume(savepoint, client, topology=topology(parallel=2), checkpoint=new)
    lossy = topology(sent=de.sources.Push(SCHEMA, replay="at-most-once"))
    with pytest.raises(SubmitError, match="'sent' writes no rows that it accepts to the folder, and in checkpoint"):
        de.resume(savepoint, client, topology=lossy, checkpoint=new)
    with pytest.raises(SubmitError, match=r"'spark' writes batches that .* writes epochs of Spark to the folder"):
        de.resume(savepoint, client, topology=topology(spark=de.sources.Push(SCHEMA)), checkpoint=new)
    job = de.resume(savepoint, client, topology=topology(), checkpoint=new)
    writer.send(table(COUNT, COUNT + 50), wait=True)
    writer.end_of_input()
    job.send(table(COUNT, COUNT + 50), source="sent", wait=True)
    job.end_of_input(source="sent")
    spark = EpochWriter(client, job.name)
    for epoch, rows in enumerate([table(0, COUNT), table(COUNT, COUNT + 50)]):
        spark.send(epoch, rows)
    end_source(spark.target)
    job.wait(**RUN)
    count = COUNT + 50
    assert states(job) == {name: [(count, sum(range(count)), 0)] for name in SOURCES}
    dropped = ["sent", "spark", "followed_sent", "followed_spark"]
    fewer = de.resume(new, client, topology=topology(names=["queued"]), drop=dropped)
    fewer.wait(**RUN)
    assert fewer.state("followed_queued").to_arrow()["n"].to_pylist() == [count]
