"""Checkpoints of a job as users see them: a single one, and where the job stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckpointDescription:
    """A checkpoint of a job.

    Parameters
    ----------
    number : int
        Its number.
    began : float
        When it began, seconds since the epoch.
    seconds : float
        Until all of its parts were durable, or it was given up.
    nbytes : int
        Bytes that were written for it.
    held : float
        The longest time for which the inputs of an executor had to wait, in seconds.
    error : str or None
        Why it was given up; None if it is complete.
    """

    number: int
    began: float
    seconds: float
    nbytes: int = 0
    held: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class JobRestart:
    """An attempt to restart a whole job from a checkpoint.

    Parameters
    ----------
    began : float
        When it began, seconds since the epoch.
    seconds : float or None
        Until the job ran again; None before, and if the attempt failed.
    checkpoint : int
        The checkpoint from which it continued; 0 for the beginning of the input.
    reason : str
        Why.
    workers : tuple of str
        Addresses of the workers that were lost, or that it leaves.
    planned : bool
        Whether nothing was lost, because workers are to leave.
    """

    began: float
    seconds: float | None
    checkpoint: int
    reason: str
    workers: tuple[str, ...] = ()
    planned: bool = False


@dataclass(frozen=True)
class CheckpointStatus:
    """Where a job stands with its checkpoints.

    Parameters
    ----------
    url : str
        The folder, for people: a password in it appears as ``***``, and `resume` needs the URL with the password.
    number : int
        The newest complete checkpoint, from which a restart continues; 0 for none.
    age : float or None
        Seconds from the beginning of that checkpoint until now, or until the job ended: a restart processes the rows of
        this time again. None without a checkpoint, and until a resumed job has completed one of its own.
    complete, given_up : CheckpointDescription or None
        The newest checkpoint that this job has completed, and the newest one that it gave up.
    given_up_count : int
        Checkpoints that were given up.
    restarts : int
        Restarts from a checkpoint, since the job was submitted or resumed.
    ended : bool
        Whether the job has ended, so that `age` no longer grows.
    """

    url: str
    number: int
    age: float | None
    complete: CheckpointDescription | None
    given_up: CheckpointDescription | None
    given_up_count: int
    restarts: int
    ended: bool = False

    @property
    def failing(self) -> bool:
        """Whether a checkpoint was given up after the newest complete one."""
        return self.given_up is not None and self.given_up.number > self.number
