"""What bounds an elastic executor: how far its tasks run ahead, when shards are balanced, and how long moves wait."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.executor.task import PENDING_BYTES


@dataclass(frozen=True)
class ExecutorLimits:
    """What bounds an executor.

    Parameters
    ----------
    inbox_time : float
        Seconds of work that a task may have taken; a label is never farther from the head than this.
    threshold : float
        Ratio of the largest to the mean task load above which shards are balanced.
    patience : float
        Seconds for which a move waits, before it pauses its shard, until the source has nothing under way.
    pending_bytes : int
        Bytes that a remote task may have been sent and not have brought home as state; half of it asks for a flush.
    """

    inbox_time: float = 0.005
    threshold: float = 1.2
    patience: float = 0.05
    pending_bytes: int = PENDING_BYTES
