"""A query of real Spark outlives Dask workers and schedulers: the state equals the result of a Spark batch."""

from __future__ import annotations

import json
import os
import signal

import pytest
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.runtime.protocol.handoff_calls import HandoffPlaces
from dask_elastic.spark import into, register
from dask_elastic.spark.staging_connection import call_scheduler
from dask_elastic.spark.target import Target

KEYS = 10
ROWS = 200


def arrive(folder, number):
    """Let a file with the next rows appear at once."""
    hidden = folder.parent / f"{number}.writing"
    rows = range(number * ROWS, (number + 1) * ROWS)
    hidden.write_text("\n".join(json.dumps({"k": n % KEYS, "v": n * n % 1000}) for n in rows))
    hidden.rename(folder / f"{number}.json")


def source_home(job):
    """The worker of the first instance of the job's source; waits while the job restarts."""
    target = Target.from_options(into(job))
    return call_scheduler(target, HandoffPlaces(job.name, None)).places[0]


@pytest.mark.usefixtures("ended_run")
def test_query_continues_over_lost_workers_and_a_lost_scheduler(spark, tmp_path, wait_until):
    register(spark)
    files, checkpoint = tmp_path / "files", tmp_path / "spark"
    files.mkdir()
    arrive(files, 0)
    stream = spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 1).json(str(files))
    topology = de.Topology("durable-query")
    rows = topology.source("rows", de.sources.Spark(stream.schema, parallel=2))
    sums = {"rows": de.aggregate.Count(), "sum": de.aggregate.Sum("v")}
    rows.key_by("k").compute(sums, name="per_key", executors=2)

    def start(job, **trigger):
        writer = stream.writeStream.format("dask_elastic").options(**into(job))
        return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()

    def counted(job):
        return job.status == "running" and job.state("per_key").to_pandas()["rows"].sum()

    with (
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="500ms")
        query = start(job, processingTime="50 milliseconds")
        wait_until(lambda: counted(job) == ROWS, "the first file is counted")
        for number in range(1, 4):
            arrive(files, number)
            if number == 1:
                home, generation = source_home(job), job._describe().generation
                os.kill(client.run(os.getpid, workers=[home])[home], signal.SIGKILL)
                wait_until(lambda before=generation: job._describe().generation > before, "the job restarts")
        wait_until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 2, "Spark goes on")
        assert query.isActive, query.exception()
    # The scheduler is lost with its workers, and the query fails at its next micro-batch.
    arrive(files, 4)
    wait_until(lambda: not query.isActive, "the query fails")
    assert query.exception() is not None
    # As if Spark's driver had died between the last commit here and its own log of it.
    newest = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()), key=lambda p: int(p.name)
    )
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        job = de.resume(tmp_path / "checkpoints", client)
        start(job, availableNow=True).awaitTermination()
        job.wait(120, progress=False)
        found = {row["k"]: (row["rows"], row["sum"]) for row in job.state("per_key").to_arrow().to_pylist()}
    batch = spark.read.schema(stream.schema).json(str(files)).groupBy("k").agg({"v": "sum", "*": "count"})
    assert found == {row["k"]: (row["count(1)"], row["sum(v)"]) for row in batch.collect()}
