"""Flush requests in flight: which remote tasks have still to bring the primary copy up to date."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.executor.instructions import FlushComplete, Instruction, RequestFlush
from dask_elastic.executor.task import Task

TRIM = -1
"""Token of a flush that nobody waits for: it only makes a pending queue shorter."""


class Flushes:
    """Open flush requests of one executor.

    Notes
    -----
    Elasticutor, section 3.1. A request that waits for a task which is lost is not fulfilled by its loss: what the task
    had done since its last flush is done again by others, and only when they have done it they are asked.
    """

    def __init__(self) -> None:
        self._open: dict[int, set[int]] = {}
        self._held: list[int] = []

    def request(self, token: int, tasks: Iterable[Task]) -> list[Instruction]:
        """Ask every remote task; complete at once where there is none."""
        remote = [task for task in tasks if not task.at_home]
        self._open[token] = {task.number for task in remote}
        asked: list[Instruction] = [RequestFlush(task.number, task.node, token) for task in remote]
        return asked + self._completed()

    def hold(self, token: int) -> None:
        """Keep a request until what was lost has been done again."""
        self._held.append(token)

    def lost(self, tasks: Iterable[int]) -> None:
        """Hold the requests that wait for tasks which are lost."""
        gone = set(tasks)
        for token in [token for token, waiting in self._open.items() if waiting & gone]:
            del self._open[token]
            self.hold(token)

    def replayed(self, tasks: Iterable[Task]) -> list[Instruction]:
        """Go on with the requests that were held."""
        held, self._held = self._held, []
        remote = list(tasks)
        return [instruction for token in held for instruction in self.request(token, remote)]

    def arrived(self, task: int, token: int) -> list[Instruction]:
        """Note that a task's state has been applied."""
        if token in self._open:
            self._open[token].discard(task)
        return self._completed()

    def ended(self, task: int) -> list[Instruction]:
        """Note that a task is gone; its labels have flushed everything before."""
        for waiting in self._open.values():
            waiting.discard(task)
        return self._completed()

    def _completed(self) -> list[Instruction]:
        complete = [token for token, waiting in self._open.items() if not waiting]
        for token in complete:
            del self._open[token]
        return [FlushComplete(token) for token in complete]
