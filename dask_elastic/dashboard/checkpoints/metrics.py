"""Prometheus metrics of checkpoints and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dask_elastic.vocab.checkpoint import CheckpointStatus

JOB = ("job",)

GAUGES = {
    "checkpoint_number": ("Number of the newest complete checkpoint of a job; 0 for none", JOB),
    "checkpoint_age_seconds": ("Seconds since the newest complete checkpoint of a job began", JOB),
    "checkpoint_duration_seconds": ("Seconds until all parts of the newest complete checkpoint were durable", JOB),
    "checkpoint_bytes": ("Bytes written for the newest complete checkpoint", JOB),
    "checkpoint_held_seconds": (
        "Longest time for which the inputs of an executor waited in the newest complete checkpoint",
        JOB,
    ),
}
COUNTERS = {
    "checkpoints_given_up": ("Checkpoints of a job that were given up", JOB),
    "restarts": ("Restarts of a job from a checkpoint", JOB),
}

Add = Callable[[str, Iterable[str], float | None], None]
"""Adds a sample: the metric, the values of its labels, and the value."""


def add_checkpoints(add: Add, job: str, status: CheckpointStatus, live: bool) -> None:
    """Add the samples of a job.

    Parameters
    ----------
    add : callable
        Adds one sample.
    job : str
        The job.
    status : CheckpointStatus
        Where it stands with its checkpoints.
    live : bool
        Whether the job has not ended; one that has keeps its counters only.
    """
    add("checkpoints_given_up", [job], status.given_up_count)
    add("restarts", [job], status.restarts)
    if not live:
        return
    add("checkpoint_number", [job], status.number)
    add("checkpoint_age_seconds", [job], status.age)
    if (complete := status.complete) is not None:
        add("checkpoint_duration_seconds", [job], complete.seconds)
        add("checkpoint_bytes", [job], complete.nbytes)
        add("checkpoint_held_seconds", [job], complete.held)
