"""A deadline for calls of a storage that may never return."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
logger = logging.getLogger("dask_elastic.checkpoint")

MOST_OVERDUE = 8
"""Calls of one storage that may be overdue at a time: each keeps a thread and what it writes."""

SECONDS = 30.0
SLOWEST = 4 * 2**20
"""Seconds within which a storage must answer, in addition to those for a file's bytes at this many bytes per second."""


def seconds_for(nbytes: int) -> float:
    """Return the seconds within which a file of some bytes must be written or read."""
    return SECONDS + nbytes / SLOWEST


class _Call(Generic[T]):
    """A call in a thread of its own, which no code waits for when the process ends."""

    def __init__(self, action: Callable[[], T], storage: str):
        self._action = action
        self._storage = storage
        self.overdue = False
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
            _overdue.returned(self._storage, self)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]


class _Overdue:
    """Counts, per storage, the calls that have passed their deadline and have not returned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def check(self, storage: str) -> None:
        """Raise TimeoutError if as many calls as may be are overdue."""
        with self._lock:
            count = self._counts[storage]
        if count >= MOST_OVERDUE:
            raise TimeoutError(
                f"{count} earlier calls have not returned, so no further one is made. If the storage works again, it "
                "has lost them: restart this process, which keeps their threads and what they write"
            )

    def add(self, storage: str, call: _Call[T]) -> None:
        """Count a call whose deadline has passed, unless it has returned by now."""
        with self._lock:
            if call.done.is_set():
                return
            call.overdue = True
            self._counts[storage] += 1
            count = self._counts[storage]
        if count == MOST_OVERDUE:
            logger.error(
                "storage %s: %d calls have not returned; no further one is made until one does", storage, count
            )

    def returned(self, storage: str, call: _Call[T]) -> None:
        """Stop counting a call that has returned."""
        with self._lock:
            if call.overdue:
                call.overdue = False
                self._counts[storage] -= 1


_overdue = _Overdue()


def within(allowed: Callable[[], float], action: Callable[[], T], storage: str = "") -> T:
    """Run something that may block for ever, and return its result.

    Parameters
    ----------
    allowed : callable
        Returns the seconds that it may take, from its beginning on; they may grow meanwhile.
    action : callable
        What to run. After the deadline it goes on in its thread, and its result is dropped.
    storage : str, optional
        Which storage it uses. While `MOST_OVERDUE` calls of one storage are overdue, no further one is made.

    Returns
    -------
    object
        What `action` returned.

    Raises
    ------
    TimeoutError
        When it takes longer, or too many earlier calls have not returned.

    Examples
    --------
    >>> within(lambda: 1.0, lambda: 42)
    42
    """
    _overdue.check(storage)
    began = time.monotonic()
    call = _Call(action, storage)
    while not call.done.wait(max(0.0, began + allowed() - time.monotonic())):
        if time.monotonic() - began >= (seconds := allowed()):
            _overdue.add(storage, call)
            raise TimeoutError(f"the storage has not answered within {seconds:.0f} s")
    return call.result()
