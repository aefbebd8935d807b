"""One task of an executor, as its home sees it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping

from dask_elastic.executor.pending import Pending
from dask_elastic.executor.task_queue import TaskQueue, Work
from dask_elastic.executor.task_status import TaskEvent, TaskStatus, next_status
from dask_elastic.meters import Rate

PENDING_BYTES = 32 * 2**20
"""Bytes that may be sent to a remote task before their effect is flushed to the primary copy, at most."""

REMOTE_WINDOW = 2
"""Sub-batches in flight to a remote task without network latency: one is processed while the next travels."""

MOST_IN_FLIGHT = 32
HOPS = 16


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
    pending_bytes : int
        Bound of its pending queue; a task at home has none.
    """

    __slots__ = (
        "_efforts", "_hops", "at_home", "busy", "in_flight", "node", "number", "pending", "queue", "sent", "sent_at",
        "sleeping", "status", "window",
    )  # fmt: skip

    def __init__(self, task: int, node: int, at_home: bool, pending_bytes: int = PENDING_BYTES):
        self.number = task
        self.node = node
        self.at_home = at_home
        self.queue = TaskQueue()
        self.sleeping = False
        self.status = TaskStatus.ACTIVE
        self.sent = 0
        self.in_flight: dict[int, Work] = {}
        self.pending = None if at_home else Pending(pending_bytes)
        self.sent_at: dict[int, float] = {}
        self.window = REMOTE_WINDOW
        self._hops: deque[float] = deque(maxlen=HOPS)
        self._efforts: deque[float] = deque(maxlen=HOPS)
        self.busy = Rate(window=1.0)

    def handle(self, event: TaskEvent) -> None:
        """Change the status as the table of `task_status` says.

        Raises
        ------
        ProtocolError
            If the event is illegal in this status.
        """
        self.status = next_status(self.number, self.status, event)

    def send(self, work: Work, now: float) -> int:
        """Mark a sub-batch as in flight; returns its number."""
        number = self.sent
        self.sent += 1
        self.in_flight[number] = work
        if self.pending is not None:
            self.sent_at[number] = now
            self.pending.add(number, work)
        return number

    @property
    def is_full(self) -> bool:
        """Whether no further sub-batch may be sent: the window or the pending queue is full, or suspects are alone."""
        if self.pending is None:
            return False
        if not self.pending.has_room:
            return True
        return bool(self.in_flight) and (len(self.in_flight) >= self.window or self._has_suspects)

    @property
    def _has_suspects(self) -> bool:
        """Whether rows of which another node may have died are next, or in flight, where they are the only ones.

        If the node dies as well, it is certain what it was processing.
        """
        return self.queue.begins_with_suspect or next(iter(self.in_flight.values())).is_suspect

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do, and what it gets does not fill its pending queue."""
        return not self.in_flight and not len(self.queue) and (self.pending is None or self.pending.is_short)

    def settle(self, number: int, busy: float, waited: float, now: float, unit: float) -> None:
        """Mark a sub-batch as done, and fit the window to the round-trip time.

        Parameters
        ----------
        number : int
            The sub-batch.
        busy, waited : float
            Seconds for which it kept the core busy, and for which it waited for the core at its node.
        now : float
            The time in seconds.
        unit : float
            Seconds of work in one sub-batch, at most, unless a single row or call takes longer.

        Notes
        -----
        The core idles unless the work in flight lasts for as long as the round trip. More would only delay labels, and
        could not be routed elsewhere: of rows that take long, fewer sub-batches suffice. A task at home has no window.
        """
        del self.in_flight[number]
        if self.pending is None:
            return
        self.pending.settle(number)
        self._hops.append(now - self.sent_at.pop(number) - busy - waited)
        self._efforts.append(busy)
        lasts = max(unit, _median(self._efforts))
        self.window = min(REMOTE_WINDOW + max(0, math.ceil(_median(self._hops) / lasts)), MOST_IN_FLIGHT)

    @property
    def hop(self) -> float | None:
        """Seconds of a round trip to the task's node, the median of recent ones; None at home or without any."""
        return max(_median(self._hops), 0.0) if self._hops else None


def _median(values: Collection[float]) -> float:
    return sorted(values)[len(values) // 2]


def first_tasks(home: int, cores: Mapping[int, int], pending_bytes: int) -> list[Task]:
    """Return the tasks with which an executor starts, those at home first; one at home if it has no cores.

    Parameters
    ----------
    home : int
        The executor's home.
    cores : mapping of int to int
        Its cores, by node.
    pending_bytes : int
        Bound of the pending queue of a remote task.
    """
    nodes = sorted((node for node in cores if cores[node]), key=lambda node: (node != home, node))
    places = [node for node in nodes for _ in range(cores[node])] or [home]
    return [Task(number, node, node == home, pending_bytes) for number, node in enumerate(places)]


def first_takers(tasks: Iterable[Task], most: int | None) -> list[int]:
    """Return the numbers of the tasks that get shards in the beginning: so many of each node at most, None for all."""
    found: dict[int, list[int]] = {}
    for task in tasks:
        found.setdefault(task.node, []).append(task.number)
    return [number for numbers in found.values() for number in numbers[:most]]
