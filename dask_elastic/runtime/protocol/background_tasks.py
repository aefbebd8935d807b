"""Tasks of an event loop whose end no caller awaits."""

from __future__ import annotations

import asyncio
import logging
from typing import Any


class BackgroundTasks:
    """Keeps tasks until they end, and logs the errors with which they end; asyncio keeps no task itself.

    Without the log, an error would appear when the task is collected, as one that was never retrieved, and without what
    the task was for.

    Parameters
    ----------
    logger : logging.Logger
        The log.

    Examples
    --------
    >>> async def run():
    ...     tasks = BackgroundTasks(logging.getLogger("example"))
    ...     tasks.keep(asyncio.ensure_future(asyncio.sleep(0)), "job 'words': the end of its parts")
    ...     kept = len(tasks)
    ...     await asyncio.sleep(0.01)
    ...     return kept, len(tasks)
    >>> asyncio.run(run())
    (1, 0)
    """

    def __init__(self, logger: logging.Logger):
        self._logger = logger
        self._tasks: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def keep(self, task: asyncio.Future[Any], what: str) -> None:
        """Keep a task until it ends.

        Parameters
        ----------
        task : asyncio.Future
            The task.
        what : str
            What it does, and for which job; begins the message about an error.
        """
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, what))

    def _ended(self, task: asyncio.Future[Any], what: str) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("%s failed", what, exc_info=error)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in [*self._tasks]:
            task.cancel()
