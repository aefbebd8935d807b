"""Flush requests in flight: which remote tasks have still to bring the primary copy up to date."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.executor.instructions import FlushComplete, Instruction, RequestFlush
from dask_elastic.executor.task import Task


class Flushes:
    """Open flush requests of one executor, and how far each remote task's state has come home.

    Notes
    -----
    Elasticutor, section 3.1: `through` is the paper's t_s, the number up to which a remote task's state is part of the
    primary copy.
    """

    def __init__(self) -> None:
        self.through: dict[int, int] = {}
        self._open: dict[int, set[int]] = {}

    def request(self, token: int, tasks: Iterable[Task]) -> list[Instruction]:
        """Ask every remote task; complete at once where there is none."""
        remote = [task for task in tasks if not task.at_home]
        self._open[token] = {task.number for task in remote}
        asked: list[Instruction] = [RequestFlush(task.number, task.node, token) for task in remote]
        return asked + self._completed()

    def arrived(self, task: int, through: int, token: int) -> list[Instruction]:
        """Note that a task's state has been applied."""
        self.through[task] = max(through, self.through.get(task, -1))
        if token in self._open:
            self._open[token].discard(task)
        return self._completed()

    def ended(self, task: int) -> list[Instruction]:
        """Note that a task is gone; its labels have flushed everything before."""
        self.through.pop(task, None)
        for waiting in self._open.values():
            waiting.discard(task)
        return self._completed()

    def _completed(self) -> list[Instruction]:
        complete = [token for token, waiting in self._open.items() if not waiting]
        for token in complete:
            del self._open[token]
        return [FlushComplete(token) for token in complete]
