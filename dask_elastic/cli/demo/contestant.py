"""A job of the demonstration, with the local cluster on which it runs alone."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from distributed import LocalCluster

from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.protocol.job_calls import Describe
from dask_elastic.runtime.protocol.job_description import JobDescription


@dataclass(frozen=True)
class Contestant:
    """A job and its cluster.

    Parameters
    ----------
    label : str
        What the job is called in tables.
    job : Job
        The job.
    cluster : LocalCluster
        The cluster, with no other job. A restart takes any free slots: on a common cluster it could take those of the
        other job.
    """

    label: str
    job: Job
    cluster: LocalCluster

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.job.name

    def describe(self) -> JobDescription:
        """Ask the scheduler for the job's description."""
        return call_scheduler(self.job.client, Describe(self.name))

    def is_complete(self, described: JobDescription) -> bool:
        """Return whether all workers are nodes of the job; one that replaces another joins after its start."""
        return sum(map(bool, described.nodes)) >= len(self.cluster.workers)

    def kill_home(self) -> None:
        """Kill the worker that is home of the first executor of the first operator, with SIGKILL.

        In both jobs it is also the home of the source, and of other executors. Its nanny starts another worker.
        """
        described = self.describe()
        first = next(one for one in described.executors if (one.operator, one.executor) == (next(iter(KEYS)), 0))
        home = described.nodes[first.node]
        [process] = [nanny.pid for nanny in self.cluster.workers.values() if nanny.worker_address == home]
        os.kill(process, signal.SIGKILL)
