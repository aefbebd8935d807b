"""What a wait for the end of a job raises."""

from __future__ import annotations

from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.vocab.errors import ElasticError, JobFailed, JobStopped


def raise_for_end(described: JobDescription, waited: str) -> None:
    """Raise unless a job has finished, and changes the folder of its checkpoints no more.

    Parameters
    ----------
    described : JobDescription
        The job, after the wait for its end.
    waited : str
        How long the wait lasted, for its errors; empty for a wait without a timeout.

    Raises
    ------
    JobFailed
        If the job failed.
    JobStopped
        If it was stopped.
    TimeoutError
        If it still runs, or its folder may still change.
    """
    if described.live:
        raise TimeoutError(f"job {described.name!r} is still {described.status.value}{waited}")
    changes = f"the folder of its checkpoints may still change{waited}: wait again before you delete it"
    cause = None if described.error is None else load_error(described.error)
    if cause is not None or described.status is Status.FAILED:
        error: ElasticError = JobFailed(f"job {described.name!r} failed: {cause or 'see the log of the scheduler'}")
    elif described.status is Status.STOPPED:
        error = JobStopped(f"job {described.name!r} was stopped")
    elif described.settled:
        return
    else:
        raise TimeoutError(f"job {described.name!r} has finished, but its storage has not answered, and {changes}")
    if not described.settled:
        error.add_note(f"Its storage has not answered, and {changes}.")
    if cause is None:
        # Not from None: the traceback shows the error that the program handles.
        raise error
    raise error from cause
