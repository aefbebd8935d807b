"""The interface of a feed: it brings the same flights into several jobs, and computes their results by a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pandas as pd
import pyarrow as pa

from dask_elastic.runtime.client.job import Job
from dask_elastic.topology import Stream, Topology

READ_COLUMNS = ["sched_dep", "flight", "tailnum", "route", "arr_delay"]
"""The columns of the flights that a feed uses."""


class Feed(AbstractContextManager["Feed"], Protocol):
    """Brings flights into jobs; used for one set of jobs after the other.

    Attributes
    ----------
    against : str
        The batch system whose results are the reference.
    trial_seconds : float
        Seconds of flights after which its cost is known.
    """

    against: str
    trial_seconds: float

    def introduction(self) -> str:
        """Describe in a line or two how the flights reach the jobs."""

    def ready(self) -> None:
        """Wait until flights can be fed."""

    def stream(self, topology: Topology, rate: float) -> Stream:
        """Add the source with a rate, and return the stream of flights that arrived."""

    def begin(self, jobs: Sequence[Job], flights: pa.Table, rate: float) -> None:
        """Start to feed running jobs with all flights, then end their sources."""

    def stop(self) -> None:
        """Stop feeding jobs that were stopped, while their cluster still runs."""

    def read(self, flights: pa.Table) -> pa.Table:
        """Return those of the flights that the source of a job reads."""

    def check(self) -> None:
        """Raise the error if feeding has failed."""

    def expected(self) -> dict[str, pd.DataFrame]:
        """Return the batch's result for the flights fed last: each operator's state, by key."""
