"""A feed through Spark: raw text files arrive, and a streaming query per job cleans them and sends them to it."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import functions as sql

from dask_elastic.cli.demo.feed import READ_COLUMNS
from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.connectors import sources
from dask_elastic.runtime.client.job import Job
from dask_elastic.spark import into, register, session
from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.spark_session import silence_python
from dask_elastic.topology import Stream, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RAW = ", ".join(f"{name} string" for name in READ_COLUMNS)
"""Columns of the raw files, which are CSV without a header."""

CLEAN = ["to_timestamp_ntz(sched_dep) as sched_dep", "route", "trim(tailnum) as tailnum",
         "cast(arr_delay as bigint) as arr_delay"]  # fmt: skip
CLEANED = pa.schema(
    {"sched_dep": pa.timestamp("us"), "route": pa.string(), "tailnum": pa.string(), "arr_delay": pa.int64()}
)

FILE_SECONDS = 2.0
"""Seconds of flights in a file, at least."""

FILE_ROWS = 400
"""Flights in a file, at least: a file of few takes Spark as long, on a machine that is too slow for higher rates."""

AHEAD = 4
"""Most files that arrive at once in the beginning, at most half of all; the others follow at the rate of the jobs.

They bridge seconds in which Spark is slow: a source without rows would look like a load that falls and rises again.
"""

TRIGGER = "250 milliseconds"
"""How often Spark looks for a file; it takes one at a time.

Spark does not order the rows of several files. Rows of a later month among those of an earlier one would be hot routes
on two executors at once. Several looks per file, so that a slow Spark catches up.
"""

SPARK_OPTIONS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    # A Java that runs for a minute would spend most of its processor time on optimising code, at the cost of the jobs.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def clean(frame: DataFrame) -> DataFrame:
    """Parse the raw text and drop flights that did not arrive; the stream and the batch use it."""
    return frame.selectExpr(*CLEAN).where("arr_delay is not null")


class SparkFeed:
    """Feeds jobs from Spark Structured Streaming; a Spark batch computes the reference from the same files."""

    against = "Spark's batch"
    trial_seconds = 5.0

    def __init__(self) -> None:
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(6, thread_name_prefix="flights")
        self._running: list[Future[None]] = []
        self._runs = 0

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="dask-elastic-demo-")
        silence_python()
        # Java takes a few seconds to start; start it while the Dask workers start.
        self._starting = self._threads.submit(self._start)
        return self

    def _start(self) -> SparkSession:
        return session("flights", master="local[2]", config=SPARK_OPTIONS, stream=sys.stdout)

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._starting.exception() is None:
            self.stop()
            self._starting.result().stop()
        self._threads.shutdown()
        self._directory.cleanup()

    @property
    def _run(self) -> Path:
        """The directory of the run; each has its own files and checkpoints."""
        return Path(self._directory.name, str(self._runs))

    @property
    def _folder(self) -> Path:
        return self._run / "arriving"

    def introduction(self) -> str:
        """Describe how the flights reach the jobs."""
        return (
            "They arrive as raw text files, seconds apart. Spark Structured Streaming parses and cleans them,\n"
            "and sends its micro-batches to the running jobs: one query per job, over the same files."
        )

    def _spark(self) -> SparkSession:
        """Return the session; wait until Spark has started."""
        with nullcontext() if self._starting.done() else progress_bar("Starting Spark"):
            return self._starting.result()

    def ready(self) -> None:
        """Wait until Spark has started."""
        self._spark()

    def stream(self, topology: Topology, rate: float) -> Stream:
        """Add the source; Spark has dropped the flights that did not arrive."""
        return topology.source("departures", sources.Spark(CLEANED, rate=rate, event_time="sched_dep"))

    def begin(self, jobs: Sequence[Job], flights: pa.Table, rate: float) -> None:
        """Start a query for each job, and a thread that writes the files."""
        spark = self._spark()
        self._runs += 1
        self._folder.mkdir(parents=True)
        register(spark)
        arrived = threading.Event()
        seconds = max(FILE_SECONDS, FILE_ROWS / rate)

        def arrive() -> None:
            self._arrive(flights, max(1, int(rate * seconds)), seconds)
            arrived.set()

        def end(query: StreamingQuery) -> None:
            with spark_errors("feeding the jobs"):
                while query.isActive and not arrived.wait(FILE_SECONDS):
                    pass
                query.processAllAvailable()
                query.stop()  # ends the source, and so the job
                query.awaitTermination()

        queries = [self._start_query(spark, job) for job in jobs]
        # In threads: Ctrl-C reaches only the main thread, which must not be in a call to Java then.
        self._running = [self._threads.submit(arrive), *(self._threads.submit(end, query) for query in queries)]

    def _cleaned(self, spark: SparkSession) -> DataFrame:
        return clean(spark.readStream.schema(RAW).option("maxFilesPerTrigger", 1).csv(str(self._folder)))

    def _start_query(self, spark: SparkSession, job: Job) -> StreamingQuery:
        writer = self._cleaned(spark).writeStream.format("dask_elastic").options(**into(job))
        writer = writer.option("checkpointLocation", str(self._run / job.name))
        return writer.trigger(processingTime=TRIGGER).start()

    def _arrive(self, flights: pa.Table, rows: int, seconds: float) -> None:
        """Write files of so many rows one after the other, each atomically, so many seconds apart."""
        [raw] = flights.select(READ_COLUMNS).combine_chunks().to_batches()
        ahead, began = min(AHEAD, raw.num_rows // rows // 2), time.time()
        for number, start in enumerate(range(0, raw.num_rows, rows)):
            hidden = self._run / "writing"
            csv.write_csv(raw.slice(start, rows), hidden, csv.WriteOptions(include_header=False))
            # Spark reads files in the order of these times, which are milliseconds to it.
            os.utime(hidden, times=(began + number,) * 2)
            hidden.rename(self._folder / f"departures-{number:04}.csv")
            if number + 1 >= ahead and self._over.wait(seconds):
                return

    def stop(self) -> None:
        """Stop the queries: at its end, each tells the cluster that its source ends."""
        self._over.set()
        if self._starting.done() and self._starting.exception() is None:
            for query in self._starting.result().streams.active:
                query.stop()

    def read(self, flights: pa.Table) -> pa.Table:
        """Return the flights that arrived; Spark drops the others."""
        return flights.filter(pc.is_valid(flights["arr_delay"]))

    def check(self) -> None:
        """Raise the error if writing files or a query has failed."""
        for done in filter(Future.done, self._running):
            done.result()

    def expected(self) -> dict[str, pd.DataFrame]:
        """Compute the jobs' result with a Spark batch, from the same files."""
        rows = clean(self._starting.result().read.schema(RAW).csv(str(self._folder))).cache()
        columns = [
            sql.count("*").alias("flights"),
            sql.sum("arr_delay").alias("total"),
            sql.mean("arr_delay").alias("mean"),
            sql.max("arr_delay").alias("worst"),
        ]
        return {
            operator: rows.groupBy(key).agg(*columns).toArrow().to_pandas().set_index(key).sort_index()
            for operator, key in KEYS.items()
        }
