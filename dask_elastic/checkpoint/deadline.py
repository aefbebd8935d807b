"""A deadline for calls of a storage that may never return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

SECONDS = 30.0
SLOWEST = 4 * 2**20
"""Seconds within which a storage must answer, in addition to those for a file's bytes at this many bytes per second."""


def seconds_for(nbytes: int) -> float:
    """Return the seconds within which a file of some bytes must be written or read."""
    return SECONDS + nbytes / SLOWEST


class _Call(Generic[T]):
    """A call in a thread of its own, which no code waits for when the process ends."""

    def __init__(self, action: Callable[[], T]):
        self._action = action
        self._result: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Event()
        threading.Thread(target=self._run, name="elastic-storage", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._action())
        except BaseException as error:  # raised in the thread that waits
            self._error = error
        finally:
            self.done.set()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]


def within(allowed: Callable[[], float], action: Callable[[], T]) -> T:
    """Run something that may block for ever, and return its result.

    Parameters
    ----------
    allowed : callable
        Returns the seconds that it may take, from its beginning on; they may grow meanwhile.
    action : callable
        What to run. After the deadline it goes on in its thread, and its result is dropped.

    Returns
    -------
    object
        What `action` returned.

    Raises
    ------
    TimeoutError
        When it takes longer.

    Examples
    --------
    >>> within(lambda: 1.0, lambda: 42)
    42
    """
    call, began = _Call(action), time.monotonic()
    while not call.done.wait(max(0.0, began + allowed() - time.monotonic())):
        if time.monotonic() - began >= (seconds := allowed()):
            raise TimeoutError(f"the storage has not answered within {seconds:.0f} s")
    return call.result()
