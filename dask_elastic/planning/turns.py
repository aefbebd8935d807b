"""Turns of long computations, between which the caller can yield to an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

TURN_ITEMS = 32
"""Items between two pauses; each takes some microseconds."""


def no_pause() -> None:
    """Do nothing, where no one waits for a turn."""


def in_turns(items: Iterable[T], pause: Callable[[], None]) -> Iterator[T]:
    """Yield items, and pause now and then.

    Parameters
    ----------
    items : iterable
        What is computed with.
    pause : callable
        Called before the first item and after each `TURN_ITEMS`.

    Examples
    --------
    >>> pauses = []
    >>> len(list(in_turns(range(100), lambda: pauses.append(1)))), len(pauses)
    (100, 4)
    """
    for number, item in enumerate(items):
        if not number % TURN_ITEMS:
            pause()
        yield item
