"""Keys by which the control loop identifies one generation of a job, and its executors."""

from __future__ import annotations

from typing import TypeAlias

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import JobSnapshot

JobKey: TypeAlias = tuple[str, int]
"""Name and generation of a job."""

ExecutorKey: TypeAlias = tuple[str, int, ExecutorId]
"""Name and generation of a job, and one of its executors."""


def job_key(job: JobSnapshot) -> JobKey:
    """Return name and generation of a job.

    Examples
    --------
    >>> job_key(JobSnapshot("flights", 2, ()))
    ('flights', 2)
    """
    return job.name, job.generation
