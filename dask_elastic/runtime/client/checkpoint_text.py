"""Where a job stands with its checkpoints, in a few words."""

from __future__ import annotations

from dask.utils import format_time

from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus


def newest_checkpoint(status: CheckpointStatus) -> str:
    """Return the newest complete checkpoint and its age.

    Examples
    --------
    >>> newest_checkpoint(CheckpointStatus("/c", 0, None, None, None, 0, 0))
    'no checkpoint yet'
    >>> newest_checkpoint(CheckpointStatus("/c", 7, None, None, None, 0, 0))
    'resumed from checkpoint 7'
    >>> newest_checkpoint(CheckpointStatus("/c", 8, 2.5, CheckpointDescription(8, 100.0, 0.1), None, 0, 0))
    'checkpoint 8 of 2.50 s ago'
    >>> newest_checkpoint(
    ...     CheckpointStatus("/c", 8, 2.5, CheckpointDescription(8, 100.0, 0.1), None, 0, 0, ended=True)
    ... )
    'checkpoint 8 of 2.50 s before the job ended'
    """
    if not status.number:
        return "no checkpoint yet"
    if status.age is None:
        return f"resumed from checkpoint {status.number}"
    since = "before the job ended" if status.ended else "ago"
    return f"checkpoint {status.number} of {format_time(status.age)} {since}"


def restarted(status: CheckpointStatus) -> str:
    """Return how often a job was restarted; empty if it never was.

    Examples
    --------
    >>> restarted(CheckpointStatus("/c", 7, None, None, None, 0, 2))
    '2 restarts'
    """
    return f"{status.restarts} restart{'' if status.restarts == 1 else 's'}" if status.restarts else ""


def given_up(taken: CheckpointDescription) -> str:
    """Return why a checkpoint was given up, in one line.

    Examples
    --------
    >>> given_up(CheckpointDescription(9, 100.0, 0.1, error="the disk is full"))
    'checkpoint 9 was given up: the disk is full'
    """
    reason = (taken.error or "").strip().partition("\n")[0]
    return f"checkpoint {taken.number} was given up: {reason}"
