"""What the instances of a job contribute to a checkpoint, as they acknowledge it."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.checkpoint.chain import Chain


@dataclass(frozen=True)
class SourcePosition:
    """Where an instance of a source continues after a restart.

    Parameters
    ----------
    offset : object
        An offset that the source has yielded; None is the beginning.
    skip : int
        How many rows behind it were sent before the checkpoint.
    ended : bool
        Whether the instance has sent its last row.
    event_time : int or None
        The newest event time of the rows that were sent, microseconds since the epoch.
    """

    offset: object = None
    skip: int = 0
    ended: bool = False
    event_time: int | None = None


@dataclass(frozen=True)
class ExecutorPart:
    """The state of an executor in a checkpoint.

    Parameters
    ----------
    chain : Chain
        The files from which it is restored.
    held : float
        Seconds for which its inputs had to wait, from the first barrier to the cut.
    event_time : int or None
        The event time of its last state record: what the state has closed.
    groups : tuple of int or None
        The key groups that it owned; None where groups do not move.
    """

    chain: Chain
    held: float
    event_time: int | None = None
    groups: tuple[int, ...] | None = None
