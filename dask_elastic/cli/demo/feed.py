"""The interface of a feed: it brings the flights into the job, and computes the reference results by a batch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import pandas as pd

from dask_elastic.runtime.client.job import Job
from dask_elastic.topology import Stream, Topology


class Feed(AbstractContextManager["Feed"], Protocol):
    """Brings the flights into the job.

    Attributes
    ----------
    against : str
        The batch system whose results are the reference.
    """

    against: str

    def introduction(self) -> str:
        """Describe in a line or two how the flights reach the job."""

    def stream(self, topology: Topology) -> Stream:
        """Add the source, and return the stream of flights that arrived, with hot routes applied."""

    def begin(self, job: Job) -> None:
        """Start to feed a running job."""

    def check(self) -> None:
        """Raise the error if feeding has failed."""

    def end_early(self, job: Job) -> None:
        """Stop feeding before the end of the flights."""

    def fed(self, job: Job) -> int:
        """Return how many flights have been fed so far, including those that did not arrive."""

    def expected(self, job: Job) -> dict[str, pd.DataFrame]:
        """Return the batch's result for the fed flights: each operator's state, by key."""
