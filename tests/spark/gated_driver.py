"""Run by `test_killed_driver`: a driver of Spark whose queries stop at certain steps of an epoch until they are killed.

Takes a folder with the file `plan.json`, and the name of this driver.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from dask_elastic.spark import register, session
from dask_elastic.spark.data_source import DaskElasticSource, StreamWriter

GATED = 1
"""The epoch that stops."""

# Code that runs for seconds only. Java does not read TMPDIR.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    f" -Djava.io.tmpdir={tempfile.gettempdir()}"
)

CONFIG = {
    # Each file is a partition.
    "spark.sql.files.openCostInBytes": "128m",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}


def stop_at(folder: Path, point: str) -> None:
    """Note that a point is reached, and wait until the test goes on; the second time, do nothing."""
    reached = folder / f"{point}.reached"
    if reached.exists():
        return
    reached.touch()
    parent = os.getppid()
    while not (folder / "released").exists() and os.getppid() == parent:
        time.sleep(0.02)


def gated_task(folder: Path, first: int):
    """Return a function on batches that stops the second partition of the epoch that begins with a value."""

    def work(batches):
        from pyspark import TaskContext

        for batch in batches:
            if TaskContext.get().partitionId() == 1 and batch["v"][0].as_py() >= first:
                stop_at(folder, "staging")
            yield batch

    return work


class GatedWriter(StreamWriter):
    """Stops between the answer of Dask's scheduler and Spark's own log of the commit."""

    folder: Path
    """The folder of the test, set by `main`."""

    def commit(self, messages, batchId):  # noqa: N803
        super().commit(messages, batchId)
        if self.target.source == "answered" and batchId == GATED:
            stop_at(self.folder, "answered")


class GatedSource(DaskElasticSource):
    """The data source of dask_elastic, with such a writer."""

    def streamWriter(self, schema, overwrite):  # noqa: N802
        return GatedWriter(super().streamWriter(schema, overwrite).target)


def wait_for(file: Path) -> None:
    """Wait until the test creates a file."""
    while not file.exists():
        time.sleep(0.02)


def main(folder: Path, name: str) -> None:
    """Run a query into each source of the job, until all files are read."""
    plan = json.loads((folder / "plan.json").read_text())
    spark = session(name, master=plan["master"], config=CONFIG)
    register(spark)
    # Before Spark pickles the class.
    GatedWriter.folder = folder
    spark.dataSource.register(GatedSource)
    wait_for(folder / f"{name}.starts")
    queries = []
    for point, options in plan["options"].items():
        stream = spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", plan["files"])
        rows = stream.json(str(folder / point / "files"))
        if point == "staging":
            rows = rows.mapInArrow(gated_task(folder, plan["first"]), rows.schema)
        writer = rows.writeStream.format("dask_elastic").options(**options)
        writer = writer.option("checkpointLocation", str(folder / point / "checkpoint"))
        queries.append(writer.trigger(processingTime="20 milliseconds").start())
    wait_for(folder / "all-arrived")
    for query in queries:
        query.processAllAvailable()
    for query in queries:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
