"""A queue whose items are handled one at a time: by its thread, or by one that brings an item while it is idle."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from dask_elastic.runtime.transport.doorbell import Doorbell

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """A queue with a turn: the thread that has it handles the next item, in order.

    Examples
    --------
    >>> queue = TurnQueue()
    >>> queue.begin_turn()
    False
    >>> queue.put("first")
    >>> queue.take()
    'first'
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._idle = False
        self._lock = threading.Lock()
        self._bell = Doorbell()

    def put(self, item: T) -> None:
        """Append an item for the queue's own thread."""
        with self._lock:
            self._items.append(item)
            wakes, self._idle = self._idle, False
        if wakes:
            self._bell.ring()

    def begin_turn(self) -> bool:
        """Take the turn if nothing waits and no thread has it; the caller handles one item and calls `end_turn`."""
        with self._lock:
            began, self._idle = self._idle, False
            return began

    def end_turn(self) -> None:
        """Return the turn; the queue's own thread continues if items wait."""
        with self._lock:
            self._idle = not self._items
            wakes = not self._idle
        if wakes:
            self._bell.ring()

    def take_while(self, fits: Callable[[T], bool]) -> list[T]:
        """Return the next items as long as they fit, without waiting; called by the thread that has the turn."""
        taken = []
        with self._lock:
            while self._items and fits(self._items[0]):
                taken.append(self._items.popleft())
        return taken

    def take(self) -> T:
        """Return the next item, waiting for it; called by the queue's own thread, which then has the turn."""
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                self._idle = True
            self._bell.wait()
