"""Run by `test_lost_executor`: Spark's local-cluster writes two micro-batches, and one of its executors is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.spark import handoff, session

ROWS = 100_000
PARTITIONS = 3


def kill_once(folder: str):
    """Return a function on the rows of a partition that kills the executor in their midst, the first time."""

    def work(batches):
        from pyspark import TaskContext

        mark = Path(folder) / "killed"
        for number, batch in enumerate(batches):
            yield batch
            if number == 1 and TaskContext.get().partitionId() == 1 and not mark.exists():
                # By then another partition of this executor has probably been staged as a whole.
                mark.write_text(str(executor()))
                os.kill(executor(), signal.SIGKILL)

    def executor() -> int:
        """Return the JVM above this Python worker: the daemon that forked it is between."""
        pid = os.getpid()
        while True:
            status = Path(f"/proc/{pid}/status").read_text()
            pid = int(status.split("PPid:")[1].split()[0])
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return pid

    return work


def main(folder: str) -> None:
    config = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.ui.enabled": "false"}
    spark = session("lost-executor", master="local-cluster[2,1,512]", config=config)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        frame = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id")
        later = spark.range(ROWS, 2 * ROWS, 1, PARTITIONS).selectExpr("id")
        topology = de.Topology("lost")
        ids = topology.source("ids", de.sources.Spark(frame.schema, parallel=2))
        ids.key_by("id").compute({"times": de.aggregate.Count()}, name="per_id")
        job = de.submit(topology, client)
        handoff(frame.mapInArrow(kill_once(folder), frame.schema), 0, job, query="q")
        handoff(later, 1, job, query="q", end=True)
        job.wait(60, progress=False)
        state = job.state("per_id").to_pandas()
        lost = len(list(Path(folder).glob("killed")))
        print(f"{state['times'].sum()} rows, {state['id'].nunique()} different, {lost} executor lost")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
