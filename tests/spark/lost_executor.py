"""Run by `test_lost_executor`: Spark's local-cluster sends rows by handoff and by a query, and loses executors.

The first job has no checkpoints; the second one does, so that the tasks of its writers wait for durable storage. With
DASK_ELASTIC_EVERY_CRASH, the second one has rows by handoff, too.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.spark import handoff, into, register, session

ROWS = 90_000
PARTITIONS = 3
EVERY = bool(os.environ.get("DASK_ELASTIC_EVERY_CRASH"))


def kill_once(mark: str):
    """Return a function on a partition's batches that kills the executor after the second batch, once."""

    def work(batches):
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            if number == 1 and TaskContext.get().partitionId() == 1 and not Path(mark).exists():
                # By then, another partition of this executor has probably been staged completely.
                Path(mark).write_text(str(executor()))
                os.kill(executor(), signal.SIGKILL)

    def executor() -> int:
        """Return the pid of the JVM that is an ancestor of this Python worker."""
        pid = os.getpid()
        while True:
            status = Path(f"/proc/{pid}/status").read_text()
            pid = int(status.split("PPid:")[1].split()[0])
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return pid

    return work


def write_by_handoff(spark, job, folder: Path, end: bool) -> None:
    """Send the first rows as epoch 0 by `handoff`."""
    frame = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id")
    mark = folder / f"killed-by-handoff-to-{job.name}"
    handoff(frame.mapInArrow(kill_once(str(mark)), frame.schema), 0, job, query="q", end=end)


def write_by_query(spark, job, folder: Path) -> None:
    """Send the other rows as the micro-batch of a streaming query, whose end finishes the job."""
    arriving, share = folder / "arriving", ROWS // PARTITIONS
    arriving.mkdir()
    for part in range(PARTITIONS):
        numbers = range(ROWS + part * share, ROWS + (part + 1) * share)
        (arriving / f"{part}.csv").write_text("\n".join(map(str, numbers)))
    stream = spark.readStream.schema("id bigint").csv(str(arriving))
    stream = stream.mapInArrow(kill_once(str(folder / "killed-by-query")), stream.schema)
    writer = stream.writeStream.format("dask_elastic").options(**into(job))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def submitted(spark, client, name: str, **options) -> de.Job:
    """Submit a job that counts each number."""
    topology = de.Topology(name)
    ids = topology.source("ids", de.sources.Spark(spark.range(1).schema, parallel=2))
    ids.key_by("id").compute({"times": de.aggregate.Count()}, name="per_id")
    return de.submit(topology, client, **options)


def report(job, folder: Path) -> None:
    """Wait until a job has ended, and print what it has counted and how many executors were lost so far."""
    job.wait(100, progress=False)
    state = job.state("per_id").to_pandas()
    lost = len({mark.read_text() for mark in folder.glob("killed-*")})
    print(f"{job.name}: {state['times'].sum()} rows, {state['id'].nunique()} different, {lost} executors lost")


def main(folder: Path) -> None:
    # Java does not delete the temporary files of a process that is killed.
    config = {
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
    }
    spark = session("lost-executor", master="local-cluster[2,1,512]", config=config)
    register(spark)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        job = submitted(spark, client, "plain")
        write_by_handoff(spark, job, folder, end=True)
        report(job, folder)
        job = submitted(spark, client, "durable", checkpoint=folder / "checkpoints", checkpoint_interval="500ms")
        if EVERY:
            write_by_handoff(spark, job, folder, end=False)
        write_by_query(spark, job, folder)
        report(job, folder)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
