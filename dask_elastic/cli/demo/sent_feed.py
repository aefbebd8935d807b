"""A feed that sends the flights from this process to the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.cli.demo.feed import READ_COLUMNS
from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.connectors import sources
from dask_elastic.runtime.client.job import Job
from dask_elastic.topology import Stream, Topology

DEPARTURES = pa.schema(
    {
        "sched_dep": pa.timestamp("ms"),
        "flight": pa.int16(),
        "tailnum": pa.string(),
        "route": pa.string(),
        "arr_delay": pa.int16(),
    }
)


class SentFeed:
    """Feeds jobs with `Job.send`; pandas computes the reference from the same flights."""

    against = "pandas"
    trial_seconds = 2.5

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="flights")
        self._running: list[Future[None]] = []
        self._flights = DEPARTURES.empty_table()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    def introduction(self) -> str:
        """Describe how the flights reach the jobs."""
        return "This process sends the flights to both jobs with Job.send."

    def ready(self) -> None:
        """Do nothing: nothing has to start."""

    def stream(self, topology: Topology, rate: float) -> Stream:
        """Add the source, and drop the flights that did not arrive."""
        source = topology.source("departures", sources.Push(DEPARTURES, rate=rate, event_time="sched_dep"))
        return source.filter(pc.field("arr_delay").is_valid(), columns=["arr_delay"], name="arrived")

    def begin(self, jobs: Sequence[Job], flights: pa.Table, rate: float) -> None:
        """Send all flights at once, in a thread per job: the sources keep the rate, and full ones block."""
        self._flights = flights.select(READ_COLUMNS)
        self._running = [self._threads.submit(_send, job, self._flights, max(1, int(rate))) for job in jobs]

    def stop(self) -> None:
        """Do nothing: sending to a stopped job raises."""

    def read(self, flights: pa.Table) -> pa.Table:
        """Return all flights."""
        return flights

    def check(self) -> None:
        """Raise the error if sending has failed."""
        for done in filter(Future.done, self._running):
            done.result()

    def expected(self) -> dict[str, pd.DataFrame]:
        """Compute the jobs' result with pandas."""
        frame = self._flights.filter(pc.is_valid(self._flights["arr_delay"])).to_pandas()
        columns = {"flights": "size", "total": "sum", "mean": "mean", "worst": "max"}
        return {operator: frame.groupby(key)["arr_delay"].agg(**columns).sort_index() for operator, key in KEYS.items()}


def _send(job: Job, flights: pa.Table, rows: int) -> None:
    """Send a second of flights after the other."""
    for start in range(0, flights.num_rows, rows):
        job.send(flights.slice(start, rows))
    job.flush()
    job.end_of_input()
