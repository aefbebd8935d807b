"""One second of a job: its latency and its cores, from a snapshot of the control loop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_elastic.vocab.snapshot import JobSnapshot


@dataclass(frozen=True)
class Second:
    """One second of a job.

    Parameters
    ----------
    at : float
        Seconds since the job's first measured row.
    mean, p99 : float
        Mean and 99th percentile of the latency of the rows processed in the last two seconds, in seconds; infinite if
        none was processed although rows wait.
    cores : dict of str to tuple of int
        Cores of each executor, by operator.
    moves : int
        Shard moves so far.
    """

    at: float
    mean: float
    p99: float
    cores: dict[str, tuple[int, ...]]
    moves: int = 0

    @property
    def total_cores(self) -> int:
        """Cores of all executors."""
        return sum(map(sum, self.cores.values()))

    @classmethod
    def of(cls, job: JobSnapshot, at: float) -> Second | None:
        """Return the second that a snapshot of a job shows.

        Without a row processed lately, there is none if no row waits; if rows wait, their latency counts as infinite.
        """
        if job.latency is None and not any(executor.queue for executor in job.executors):
            return None
        mean, p99 = (math.inf if seconds is None else seconds for seconds in (job.latency, job.latency_p99))
        cores: dict[str, tuple[int, ...]] = {}
        for executor in job.executors:
            name = executor.executor.component
            cores[name] = (*cores.get(name, ()), executor.total_cores)
        return cls(at, mean, p99, cores, sum(executor.moves for executor in job.executors))
