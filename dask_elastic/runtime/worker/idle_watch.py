"""Whether a job's part is idle: its upkeep and its reports are rare then, until something arrives."""

from __future__ import annotations

import time
from collections.abc import Callable

IDLE_AFTER = 12.0
"""Seconds without arrivals after which a part is idle; longer than the windows of all measures, so that they no longer
change."""


class IdleWatch:
    """Notes what arrives at a job's part.

    Parameters
    ----------
    wake : callable
        Called when something arrives at an idle part, in the thread that brings it.
    clock : callable
        Returns the time, seconds.

    Attributes
    ----------
    idle : bool
        Whether nothing has arrived for `IDLE_AFTER` seconds.

    Examples
    --------
    >>> seconds = iter([0.0, 12.5, 12.6])
    >>> watch = IdleWatch(lambda: print("wake"), clock=lambda: next(seconds))
    >>> watch.look(), watch.look()
    (False, True)
    >>> watch.note()
    wake
    >>> watch.look()
    False
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic):
        self.idle = False
        self._wake = wake
        self._clock = clock
        self._noted = True
        self._noted_at = 0.0

    def note(self) -> None:
        """Note rows, a message or a command; called by any thread, for every batch."""
        self._noted = True
        if self.idle:
            self.idle = False
            self._wake()

    def look(self) -> bool:
        """Decide again whether the part is idle; called by one thread."""
        now = self._clock()
        if self._noted:
            self._noted, self._noted_at = False, now
        # `note` sets `_noted` before it reads `idle`, and this the other way round: one of them sees the other.
        self.idle = now - self._noted_at >= IDLE_AFTER
        if self._noted:
            self.idle = False
        return self.idle
