"""What a wait for the end of a job raises, and what it warns of."""

from __future__ import annotations

import warnings

from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import error_text, load_error
from dask_elastic.vocab.errors import ElasticError, JobFailed, JobStopped


def raise_for_end(described: JobDescription, waited: str) -> None:
    """Raise unless a job has finished, and its end is waited for no longer.

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
        If it still runs, or is still writing to its folder.
    """
    if described.live:
        raise TimeoutError(f"job {described.name!r} is still {described.status.value}{waited}")
    left = "" if described.settled else _unanswered(described) or _written(described, waited)
    if described.error is not None or described.status is Status.FAILED:
        error: ElasticError = JobFailed(f"job {described.name!r} failed: {_reason(described.error)}")
    elif described.status is Status.STOPPED:
        error = JobStopped(f"job {described.name!r} was stopped")
    elif described.awaited:
        raise TimeoutError(f"job {described.name!r} has finished, but {left}")
    else:
        return
    if left:
        error.add_note(f"After its end, {left}.")
    if described.error is None:
        # Not from None: the traceback shows the error that the program handles.
        raise error
    raise error from _loaded(described.error)


def end_warning(described: JobDescription) -> str:
    """Return that the folder of a job that has ended may still change, since something did not answer; or nothing.

    Parameters
    ----------
    described : JobDescription
        The job, after a wait for its end, or after a stop.
    """
    left = _unanswered(described)
    return f"job {described.name!r} {_ENDED[described.status]}, but {left}" if left else ""


def warn_of_end(described: JobDescription, level: int) -> None:
    """Warn a program that the folder of a job that has ended may still change.

    Parameters
    ----------
    described : JobDescription
        See `end_warning`.
    level : int
        How many calls above the program is, see `warnings.warn`.
    """
    if text := end_warning(described):
        warnings.warn(text, stacklevel=level + 1)


_ENDED = {Status.FINISHED: "has finished", Status.STOPPED: "was stopped", Status.FAILED: "has failed"}

_AGAIN = ": wait again before you delete it"


def _unanswered(described: JobDescription) -> str:
    if not described.unanswered:
        return ""
    return f"{described.unanswered} did not answer, so that {_folder(described)} may still change{_AGAIN}"


def _written(described: JobDescription, waited: str) -> str:
    return f"it was still writing its last files to {_folder(described)}{waited}{_AGAIN}"


def _folder(described: JobDescription) -> str:
    return "the folder of its checkpoints" if described.checkpoints is None else described.checkpoints.url


def _reason(error: bytes | None) -> str:
    return "see the log of the scheduler" if error is None else error_text(error)


def _loaded(data: bytes) -> BaseException:
    """Return an error, or why it cannot be unpickled here, which the text of `JobFailed` says."""
    try:
        return load_error(data)
    except Exception as problem:  # unpickling runs code of the error's class, which may raise anything
        return problem
