"""Start of a job on a cluster, which hosts dask_elastic from then on."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.client.senders import drop
from dask_elastic.runtime.client.submission.installation import Installation
from dask_elastic.runtime.protocol.job_calls import Submit

if TYPE_CHECKING:
    from distributed import Client


def start(job: Submit, client: Client, installation: Installation | None = None) -> Job:
    """Have the scheduler start a job.

    Parameters
    ----------
    job : Submit
        The job.
    client : distributed.Client
        A client of the cluster.
    installation : Installation, optional
        The registration of the plugins, if it has begun.
    """
    (installation or Installation(client)).finish()
    try:
        started = call_scheduler(client, job)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(
            f"Job {job.name!r} may start nevertheless: dask_elastic.job({job.name!r}) finds it then, and its stop() "
            "ends it."
        )
        raise
    if started.silent:
        left_out = " and ".join(started.silent)
        warnings.warn(
            f"job {started.name!r} runs without {left_out}: no answer; it joins when it answers", stacklevel=3
        )
    drop(client, started.name)
    return Job(started.name, client)
