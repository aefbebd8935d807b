"""The jobs of a cluster as its scheduler describes them."""

from __future__ import annotations

from distributed import Client

from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.protocol.job_calls import Describe, ListJobs
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.vocab.errors import UnknownJob


def descriptions(client: Client, job: str | None = None) -> list[JobDescription]:
    """Return the scheduler's descriptions of all jobs, oldest first, or of one job.

    Parameters
    ----------
    client : Client
        A client of the cluster.
    job : str, optional
        The name of the one job.

    Returns
    -------
    list of JobDescription
        One description per job.

    Raises
    ------
    UnknownJob
        If the cluster has no job of that name.
    """
    if job is not None:
        return [call_scheduler(client, Describe(job))]
    try:
        known = call_scheduler(client, ListJobs())
    except UnknownJob:  # the scheduler's plugin is not installed before the first submit
        return []
    return list(known)
