"""What the new home of an executor holds until the old one has handed it over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from dask_elastic.vocab.lock import MakeLock, NoLock

T = TypeVar("T")


class Arrival(Generic[T]):
    """What arrives for an executor at its new home, in order, until it is handled there.

    Credit bounds what is held: it is not released before the executor has processed it.

    Parameters
    ----------
    make_lock : callable
        Makes the lock between the threads that bring what the inputs send.

    Examples
    --------
    >>> arrival = Arrival()
    >>> arrival.admit("first")
    False
    >>> for item in arrival.released():
    ...     print(item, arrival.admit("second") if item == "first" else "")
    first False
    second
    >>> arrival.admit("third")
    True
    """

    def __init__(self, make_lock: MakeLock = NoLock):
        self._held: deque[T] | None = deque()
        self._lock = make_lock()

    def admit(self, item: T) -> bool:
        """Whether the executor handles an item now; otherwise it is held. Called in the order of arrival."""
        with self._lock:
            if self._held is None:
                return True
            self._held.append(item)
            return False

    def released(self) -> Iterator[T]:
        """Yield what is held, in order; once nothing is left, all further items are admitted.

        The caller, of which there is one, handles each item before it takes the next one.
        """
        while True:
            with self._lock:
                if not self._held:
                    self._held = None
                    return
                item = self._held.popleft()
            yield item
