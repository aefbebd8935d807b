"""Waits for the answers of another worker, until it must not wait any more."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from typing import TypeVar

T = TypeVar("T")


class AwaitedAnswers:
    """One thread waits for answers, one at a time; any thread may end this.

    Examples
    --------
    >>> answers, calling = AwaitedAnswers(), Future()
    >>> answers.end(RuntimeError("the job has ended"))
    >>> answers.of(calling)
    Traceback (most recent call last):
    RuntimeError: the job has ended
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calling: Future[object] | None = None
        self.error: Exception | None = None

    def of(self, calling: Future[T]) -> T:
        """Return the answer to a call; raises what it raises, or the error of `end`."""
        with self._lock:
            self._calling = calling  # type: ignore[assignment]
            ended = self.error
        if ended is not None:
            calling.cancel()
            raise ended
        try:
            return calling.result()
        except CancelledError:
            raise (self.error or CancelledError()) from None

    def end(self, error: Exception) -> None:
        """Wait no more; the first error counts."""
        with self._lock:
            self.error = self.error or error
            calling = self._calling
        if calling is not None:
            calling.cancel()
