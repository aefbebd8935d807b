"""Bounds of an elastic executor: rows that tasks take at once, load imbalance, waiting of moves, pending bytes."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.executor.task import PENDING_BYTES


@dataclass(frozen=True)
class ExecutorLimits:
    """Bounds of an executor.

    Parameters
    ----------
    inbox_time : float
        Seconds of work that a task takes at once, at most; a label waits no longer than this.
    threshold : float
        Ratio of the largest to the mean task load above which shards are balanced.
    patience : float
        Seconds for which a move waits, before it pauses its shard, until its source is idle.
    inline_time : float
        Seconds that a batch may take, as expected, to be processed by the thread that brings it to an idle task.
    hurried_time : float
        The same if that thread reads a connection, or the logic may wait for something.
    pending_bytes : int
        Bound of a remote task's pending queue, which requests a flush when it is half full.
    migration : str
        How shards move between nodes, one of `migration.strategy.STRATEGIES`.
    """

    inbox_time: float = 0.005
    threshold: float = 1.2
    patience: float = 0.05
    inline_time: float = 0.001
    hurried_time: float = 0.0002
    pending_bytes: int = PENDING_BYTES
    migration: str = "labelled"
