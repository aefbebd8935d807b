"""Flush requests in progress, and the remote tasks whose dirty state has not arrived."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.executor.instructions import FlushComplete, Instruction, RequestFlush
from dask_elastic.executor.task import Task

TRIM = -1
"""Token of a flush that only trims a pending queue; no flush request waits for it."""


class Flushes:
    """Flush requests of one executor that are not complete.

    Notes
    -----
    Elasticutor, section 3.1. The loss of a task does not complete the requests that wait for it: other tasks replay
    what it had not flushed, and the request is sent to all remote tasks again when the replay is done.
    """

    def __init__(self) -> None:
        self._open: dict[int, set[int]] = {}
        self._held: list[int] = []

    def request(self, token: int, tasks: Iterable[Task]) -> list[Instruction]:
        """Request a flush of every remote task.

        Parameters
        ----------
        token : int
            Identifies the request.
        tasks : iterable of Task
            All tasks of the executor.

        Returns
        -------
        list of Instruction
            A `RequestFlush` for each remote task, or `FlushComplete` if there is none.
        """
        remote = [task for task in tasks if not task.at_home]
        self._open[token] = {task.number for task in remote}
        requests: list[Instruction] = [RequestFlush(task.number, task.node, token) for task in remote]
        return requests + self._completed()

    def requested(self) -> list[int]:
        """Return the tokens of the requests that are not complete."""
        return [*self._open, *self._held]

    @property
    def are_held(self) -> bool:
        """Whether requests wait until flushes bring the primary copy up to date."""
        return bool(self._held)

    def hold(self, token: int) -> None:
        """Hold a request until the replay is done."""
        self._held.append(token)

    def lost(self, tasks: Iterable[int]) -> None:
        """Hold the requests that wait for lost tasks."""
        lost = set(tasks)
        for token in [token for token, waiting in self._open.items() if waiting & lost]:
            del self._open[token]
            self.hold(token)

    def hold_all(self) -> None:
        """Hold all requests: state that a task has flushed for them may reach another task unflushed."""
        self._held += self._open
        self._open.clear()

    def replayed(self, tasks: Iterable[Task]) -> list[Instruction]:
        """Make the held requests, since the replay is done."""
        held, self._held = self._held, []
        remote = list(tasks)
        return [instruction for token in held for instruction in self.request(token, remote)]

    def arrived(self, task: int, token: int) -> list[Instruction]:
        """Count the flush of a task, whose state is in the primary copy."""
        if token in self._open:
            self._open[token].discard(task)
        return self._completed()

    def ended(self, task: int) -> list[Instruction]:
        """Wait no longer for a task that has ended: its labels have flushed all of its state."""
        for waiting in self._open.values():
            waiting.discard(task)
        return self._completed()

    def _completed(self) -> list[Instruction]:
        complete = [token for token, waiting in self._open.items() if not waiting]
        for token in complete:
            del self._open[token]
        return [FlushComplete(token) for token in complete]


def trim_request(task: Task) -> list[Instruction]:
    """Request a flush of a remote task before its pending queue is full."""
    if task.pending is None or not task.pending.request_flush():
        return []
    return [RequestFlush(task.number, task.node, TRIM)]
