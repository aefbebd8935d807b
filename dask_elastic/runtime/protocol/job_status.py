"""Status of a job as a table of (status, event) -> status."""

from __future__ import annotations

from enum import Enum

from dask_elastic.vocab.errors import ProtocolError


class Status(Enum):
    """Status of a job, from its start to its end."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    RESTARTING = "restarting"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class JobEvent(Enum):
    """An event that changes the status of a job."""

    STARTED = "executors and sinks started"
    DRAIN_REQUESTED = "drain requested"
    COMPLETED = "all instances ended"
    STOP_REQUESTED = "stop requested"
    RESTART = "restart from a checkpoint"
    ERROR = "error, or lost home of a job without checkpoints"


ENDED = frozenset({Status.FINISHED, Status.STOPPED, Status.FAILED})
"""The statuses that a job never leaves."""

ENDED_NAMES = tuple(sorted(status.value for status in ENDED))
"""These, as `Job.status` returns them."""

TABLE: dict[tuple[Status, JobEvent], Status] = {
    (Status.STARTING, JobEvent.STARTED): Status.RUNNING,
    (Status.STARTING, JobEvent.STOP_REQUESTED): Status.STOPPED,
    (Status.STARTING, JobEvent.ERROR): Status.FAILED,
    (Status.RUNNING, JobEvent.DRAIN_REQUESTED): Status.DRAINING,
    (Status.RUNNING, JobEvent.COMPLETED): Status.FINISHED,
    (Status.RUNNING, JobEvent.STOP_REQUESTED): Status.STOPPED,
    (Status.RUNNING, JobEvent.ERROR): Status.FAILED,
    (Status.DRAINING, JobEvent.DRAIN_REQUESTED): Status.DRAINING,
    (Status.DRAINING, JobEvent.COMPLETED): Status.FINISHED,
    (Status.DRAINING, JobEvent.STOP_REQUESTED): Status.STOPPED,
    (Status.DRAINING, JobEvent.ERROR): Status.FAILED,
    (Status.RUNNING, JobEvent.RESTART): Status.RESTARTING,
    (Status.DRAINING, JobEvent.RESTART): Status.RESTARTING,
    (Status.RESTARTING, JobEvent.RESTART): Status.RESTARTING,
    (Status.RESTARTING, JobEvent.STARTED): Status.RUNNING,
    (Status.RESTARTING, JobEvent.STOP_REQUESTED): Status.STOPPED,
    (Status.RESTARTING, JobEvent.ERROR): Status.FAILED,
}
"""An event that is not listed is illegal. A job that has ended takes no events: the caller drops those that are late,
such as the report of a failure behind a stop. A drain that is requested during a start waits until the job has started.
"""


def next_status(job: str, status: Status, event: JobEvent) -> Status:
    """Return the status of a job after an event.

    Parameters
    ----------
    job : str
        Name of the job, for the error.
    status : Status
        Its status before.
    event : JobEvent
        What happened.

    Returns
    -------
    Status
        Its status from now on.

    Raises
    ------
    ProtocolError
        If the event is illegal in this status.

    Examples
    --------
    >>> next_status("flights", Status.RUNNING, JobEvent.DRAIN_REQUESTED)
    <Status.DRAINING: 'draining'>
    """
    try:
        return TABLE[status, event]
    except KeyError:
        raise ProtocolError(f"job {job!r}: {event.value!r} is illegal in status {status.value!r}") from None
