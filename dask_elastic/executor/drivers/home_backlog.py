"""What an executor's home has received from remote tasks and not handled yet, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from dask_elastic.executor import events
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Delivery
from dask_elastic.vocab.lock import MakeLock, NoLock


class Left(NamedTuple):
    """Outputs that lacked credit; the others of the same message have been delivered."""

    deliveries: Sequence[Delivery]


Item: TypeAlias = m.ToHome | events.NodeLeft | events.NodeReturned | Left


class Place(Enum):
    """Where an item is placed."""

    PASSES = "nothing is before it"
    FIRST = "nothing is before it, and the backlog is not being handled"
    BEHIND = "it is behind others"


class HomeBacklog:
    """Outputs of remote tasks, and all that must not overtake them.

    One thread at a time handles it: the one that has put the first item, or to which that thread has passed this on. It
    handles `head` and calls `done`, until that returns False.

    Parameters
    ----------
    make_lock : callable
        Makes the lock between this thread and those that put items.

    Examples
    --------
    >>> backlog = HomeBacklog()
    >>> backlog.put(events.NodeReturned(1)).name, backlog.put(events.NodeReturned(2), waits=False).name
    ('FIRST', 'BEHIND')
    >>> backlog.head, backlog.done(), backlog.done()
    (NodeReturned(node=1), True, False)
    >>> backlog.put(events.NodeReturned(3), waits=False).name
    'PASSES'
    """

    __slots__ = ("_items", "_lock")

    def __init__(self, make_lock: MakeLock = NoLock):
        self._items: deque[Item] = deque()
        self._lock = make_lock()

    def put(self, item: Item, waits: bool = True) -> Place:
        """Put an item behind the others; one that `waits` not is left to the caller if there are none."""
        with self._lock:
            place = Place.BEHIND if self._items else Place.FIRST if waits else Place.PASSES
            if place is not Place.PASSES:
                self._items.append(item)
            return place

    @property
    def head(self) -> Item:
        """The item that is handled now."""
        return self._items[0]

    @head.setter
    def head(self, item: Item) -> None:
        self._items[0] = item

    def done(self) -> bool:
        """Remove the item that was handled; returns whether there are more, which the caller handles."""
        with self._lock:
            self._items.popleft()
            return bool(self._items)
