"""A feed that reads the flights from a Parquet file, at a given rate."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Self

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.cli.demo.hot_routes import READ_COLUMNS, reroute
from dask_elastic.connectors import sources
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.protocol.job_calls import Describe, Drain
from dask_elastic.topology import Stream, Topology


class ParquetFeed:
    """Feeds the job from a Parquet file; pandas computes the reference from the same flights in memory.

    Parameters
    ----------
    flights : Table
        The flights, in order of departure.
    rate : float
        Flights per second.
    """

    against = "pandas"

    def __init__(self, flights: pa.Table, rate: float):
        self.flights = flights
        self.rate = rate
        self._routes = pc.unique(flights["route"]).sort().to_pylist()

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="dask-elastic-demo-")
        pq.write_table(self.flights, self._file)
        return self

    def __exit__(self, *error: object) -> None:
        self._directory.cleanup()

    @property
    def _file(self) -> Path:
        return Path(self._directory.name, "flights.parquet")

    def introduction(self) -> str:
        """Describe how the flights reach the job."""
        return "The job reads them from a Parquet file."

    def stream(self, topology: Topology) -> Stream:
        """Add the source, and the map that shifts the load."""
        source = sources.Parquet(self._file, rate=self.rate, event_time="sched_dep")
        arrived = topology.source("departures", source).filter(
            pc.field("arr_delay").is_valid(), columns=["arr_delay"], name="arrived"
        )
        return arrived.map(reroute(self._routes), columns=READ_COLUMNS, name="hot_routes")

    def begin(self, job: Job) -> None:
        """Do nothing: the job reads the file."""

    def check(self) -> None:
        """Do nothing: an error fails the job."""

    def end_early(self, job: Job) -> None:
        """Drain the job."""
        call_scheduler(job.client, Drain(job.name))

    def fed(self, job: Job) -> int:
        """Return how many flights the job has read."""
        return call_scheduler(job.client, Describe(job.name)).rows_read

    def expected(self, job: Job) -> dict[str, pd.DataFrame]:
        """Compute the job's result with pandas."""
        return reference(self.flights.slice(0, self.fed(job)), self._routes)


def reference(flights: pa.Table, routes: list[str]) -> dict[str, pd.DataFrame]:
    """Compute the job's result with pandas: each operator's state, by key.

    Parameters
    ----------
    flights : Table
        The flights that were read.
    routes : list of str
        All routes of the year.
    """
    arrived = flights.filter(pc.is_valid(flights["arr_delay"])).select(READ_COLUMNS).combine_chunks()
    rows = pa.Table.from_batches([reroute(routes)(batch) for batch in arrived.to_batches()])
    frame = rows.select([*KEYS.values(), "arr_delay"]).to_pandas()
    columns = {"flights": "size", "total": "sum", "mean": "mean", "worst": "max"}
    return {operator: frame.groupby(key)["arr_delay"].agg(**columns).sort_index() for operator, key in KEYS.items()}
