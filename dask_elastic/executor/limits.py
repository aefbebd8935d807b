"""Bounds of an elastic executor: rows that tasks take at once, load imbalance, waiting of moves, pending bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dask_elastic.executor.task import PENDING_BYTES
from dask_elastic.meters import InlineCost
from dask_elastic.meters.brief_work import BRIEF_SECONDS, FEW_ROWS


class Haste(Enum):
    """How long a thread may run an idle task in place of the task's own thread."""

    READS = "it reads a connection, or the logic may wait for something"
    BRINGS = "it has brought the rows"
    RUNS = "it does nothing but run idle tasks"


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
    brief_time : float
        Seconds that a batch of a few rows may take, as expected, to be processed by the thread that runs idle tasks.
    pending_bytes : int
        Bound of a remote task's pending queue, which requests a flush when it is half full.
    light_load : float
        Busy cores up to which an executor with a task at home gives no shards to tasks on other nodes.
    gathers : bool
        Whether shards gather on some of the tasks of each node if that is faster, see `Gathering`.
    first_takers : int or None
        Tasks of each node that get shards in the beginning; None for all.
    migration : str
        How shards move between nodes, one of `migration.strategy.STRATEGIES`.
    """

    inbox_time: float = 0.005
    threshold: float = 1.2
    patience: float = 0.05
    inline_time: float = 0.001
    hurried_time: float = 0.0002
    brief_time: float = BRIEF_SECONDS
    pending_bytes: int = PENDING_BYTES
    light_load: float = 0.0
    gathers: bool = False
    first_takers: int | None = None
    migration: str = "labelled"

    def allows(self, cost: InlineCost, rows: int, haste: Haste) -> bool:
        """Whether a thread may process so many rows in place of the task's own thread.

        Parameters
        ----------
        cost : InlineCost
            The usual processing times of small batches.
        rows : int
            The number of rows.
        haste : Haste
            What the thread does.
        """
        if haste is Haste.RUNS:
            return rows <= FEW_ROWS and cost.allows(rows, self.brief_time)
        return cost.allows(rows, self.inline_time if haste is Haste.BRINGS else self.hurried_time)
