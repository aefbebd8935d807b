"""One task of an executor as its home sees it."""

from __future__ import annotations

from dask_elastic.executor.task_queue import TaskQueue, Work
from dask_elastic.meters import Rate


class Task:
    """A data-processing thread on one core, at home or on a remote node.

    Parameters
    ----------
    task : int
        Its number, never used twice within an executor.
    node : int
        The node whose core it has.
    at_home : bool
        Whether that is the executor's home.
    """

    __slots__ = ("at_home", "busy", "draining", "in_flight", "node", "number", "queue", "sent", "sleeping", "stopping")

    def __init__(self, task: int, node: int, at_home: bool):
        self.number = task
        self.node = node
        self.at_home = at_home
        self.queue = TaskQueue()
        self.sleeping = False
        self.draining = False
        self.stopping = False
        self.sent = 0
        self.in_flight: dict[int, Work] = {}
        self.busy = Rate(window=1.0)

    @property
    def idle(self) -> bool:
        """Whether nothing waits for it and nothing is being processed."""
        return not self.in_flight and len(self.queue) == 0
