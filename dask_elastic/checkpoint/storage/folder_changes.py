"""Counts the calls that change a folder of checkpoints, so that the last ones can be awaited."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from dask_elastic.vocab.errors import CheckpointError

_Result = TypeVar("_Result")


class FolderChanges:
    """The calls by which one part of a job changes a folder; once closed, no further one begins. Thread-safe.

    Attributes
    ----------
    last : Future
        Done once it is closed, and no call is in progress any more.

    Examples
    --------
    >>> changes = FolderChanges()
    >>> changes.make("state/1/planes.arrows", lambda: 42)
    42
    >>> changes.close()
    >>> changes.last.done(), changes.running
    (True, [])
    """

    def __init__(self) -> None:
        self.last: Future[None] = Future()
        self._lock = threading.Lock()
        self._running: list[str] = []
        self._closed = False

    @property
    def running(self) -> list[str]:
        """The files that are being changed."""
        with self._lock:
            return list(self._running)

    def make(self, where: str, change: Callable[[], _Result]) -> _Result:
        """Make a change, in the thread in which the storage is called.

        Parameters
        ----------
        where : str
            The file, for messages.
        change : callable
            Makes it.

        Raises
        ------
        CheckpointError
            If it is closed.
        """
        self._begin(where)
        try:
            return change()
        finally:
            self._end(where)

    def close(self) -> None:
        """Let no further call begin; does not wait, and may be called twice."""
        with self._lock:
            done = not self._closed and not self._running
            self._closed = True
        if done:
            self.last.set_result(None)

    def _begin(self, where: str) -> None:
        with self._lock:
            if self._closed:
                raise CheckpointError(f"{where} is not changed: this part of the job has ended.")
            self._running.append(where)

    def _end(self, where: str) -> None:
        with self._lock:
            self._running.remove(where)
            done = self._closed and not self._running
        if done:
            self.last.set_result(None)
