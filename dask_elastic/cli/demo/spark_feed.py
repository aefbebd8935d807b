"""A feed through Spark: raw text files arrive, and a streaming query cleans them and sends them to the job."""

from __future__ import annotations

import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import functions as sql

from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.cli.demo.hot_routes import READ_COLUMNS, reroute
from dask_elastic.connectors import sources
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.protocol.job_calls import Describe
from dask_elastic.spark import into, register, session
from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.session import silence_python
from dask_elastic.topology import Stream, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW = ", ".join(f"{name} string" for name in READ_COLUMNS)
"""Columns of the raw files, which are CSV without a header."""

CLEAN = ["to_timestamp_ntz(sched_dep) as sched_dep", "route", "trim(tailnum) as tailnum",
         "cast(arr_delay as bigint) as arr_delay"]  # fmt: skip
CLEANED = pa.schema(
    {"sched_dep": pa.timestamp("us"), "route": pa.string(), "tailnum": pa.string(), "arr_delay": pa.int64()}
)

FILE_SECONDS = 1.0
AHEAD = 5
"""Largest number of files that the job has not read completely; the next file arrives when there are fewer."""

LOOK_SECONDS = 0.1

SPARK_OPTIONS = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}


def clean(frame: DataFrame) -> DataFrame:
    """Parse the raw text and drop flights that did not arrive; the stream and the batch use it."""
    return frame.selectExpr(*CLEAN).where("arr_delay is not null")


class SparkFeed:
    """Feeds the job from Spark Structured Streaming; a Spark batch computes the reference from the same files.

    Parameters
    ----------
    flights : Table
        The flights, in order of departure.
    rate : float
        Flights per second.
    """

    against = "Spark's batch"

    def __init__(self, flights: pa.Table, rate: float):
        self.flights = flights
        self.rate = rate
        self._files = 0
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="flights")
        self._running: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="dask-elastic-demo-")
        self._folder.mkdir()
        silence_python()
        # Java takes a few seconds to start; start it while the Dask workers start.
        self._starting = self._threads.submit(self._start)
        return self

    def _start(self) -> SparkSession:
        return session("flights", master="local[2]", config=SPARK_OPTIONS, stream=sys.stdout)

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._starting.exception() is None:
            spark = self._starting.result()
            for query in spark.streams.active:
                query.stop()
            spark.stop()
        self._threads.shutdown()
        self._directory.cleanup()

    @property
    def _folder(self) -> Path:
        return Path(self._directory.name, "arriving")

    def introduction(self) -> str:
        """Describe how the flights reach the job."""
        return (
            "They arrive as raw text files, one per second. Spark Structured Streaming parses and cleans them, and\n"
            "sends its micro-batches to the running job."
        )

    def stream(self, topology: Topology) -> Stream:
        """Add the source; the files already contain the hot routes."""
        return topology.source("departures", sources.Spark(CLEANED, rate=self.rate, event_time="sched_dep"))

    def begin(self, job: Job) -> None:
        """Start the query and a thread that writes the files."""
        spark = self._starting.result()
        register(spark)
        stream = clean(spark.readStream.schema(RAW).csv(str(self._folder)))
        writer = stream.writeStream.format("dask_elastic").options(**into(job))
        writer = writer.option("checkpointLocation", f"{self._directory.name}/checkpoint")
        query = writer.trigger(processingTime="1 second").start()

        def feed() -> None:
            with spark_errors("feeding the job"):
                self._arrive(job)
                query.processAllAvailable()
                query.stop()  # ends the source, and so the job

        def watch() -> None:
            with spark_errors("feeding the job"):
                query.awaitTermination()

        # In threads: Ctrl-C reaches only the main thread, which must not be in a call to Java then.
        self._running = [self._threads.submit(feed), self._threads.submit(watch)]

    def _arrive(self, job: Job) -> None:
        """Write the files one after the other, each atomically, at most `AHEAD` files ahead of the job."""
        routes = pc.unique(self.flights["route"]).sort().to_pylist()
        [raw] = self.flights.select(READ_COLUMNS).combine_chunks().to_batches()
        raw = reroute(routes)(raw)
        for start in range(0, raw.num_rows, self._rows_a_file):
            hidden = self._folder.parent / "writing"
            csv.write_csv(raw.slice(start, self._rows_a_file), hidden, csv.WriteOptions(include_header=False))
            hidden.rename(self._folder / f"departures-{self._files:04}.csv")
            self._files += 1
            while self._waiting(job) > (AHEAD - 1) * self._rows_a_file:
                if self._over.wait(LOOK_SECONDS):
                    return

    @property
    def _rows_a_file(self) -> int:
        return max(1, int(self.rate * FILE_SECONDS))

    def _waiting(self, job: Job) -> int:
        """Return how many flights are in files but not yet read by the job."""
        given = self.flights["arr_delay"].slice(0, self._files * self._rows_a_file)
        taken = call_scheduler(job.client, Describe(job.name)).rows_read
        return int(len(given) - given.null_count) - taken

    def check(self) -> None:
        """Raise the error if writing files or the query has failed."""
        for done in filter(Future.done, self._running):
            done.result()

    def end_early(self, job: Job) -> None:
        """Write no more files."""
        self._over.set()

    def fed(self, job: Job) -> int:
        """Return how many flights are in the files written so far."""
        return min(self._files * self._rows_a_file, int(self.flights.num_rows))

    def expected(self, job: Job) -> dict[str, pd.DataFrame]:
        """Compute the job's result with a Spark batch, from the same files."""
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
