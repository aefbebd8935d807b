"""Where the demonstration's flights come from, and what they add up to without a job."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import pandas as pd

from dask_elastic.runtime.client.job import Job
from dask_elastic.topology import Stream, Topology


class Feed(AbstractContextManager["Feed"], Protocol):
    """A way of the flights into the job.

    Attributes
    ----------
    against : str
        Whose results the job's are compared with.
    """

    against: str

    def introduction(self) -> str:
        """Say in a line or two how the flights come."""

    def stream(self, topology: Topology) -> Stream:
        """Add the source, and return the stream of the flights that arrived, hot routes in place."""

    def begin(self, job: Job) -> None:
        """Begin to feed a job that runs."""

    def check(self) -> None:
        """Raise what has gone wrong since."""

    def end_early(self, job: Job) -> None:
        """Feed no further: time is over."""

    def fed(self, job: Job) -> int:
        """Return how many flights have been fed so far, also those that did not arrive."""

    def expected(self, job: Job) -> dict[str, pd.DataFrame]:
        """Return what a batch makes of the flights that were fed: each operator's state, by key."""
