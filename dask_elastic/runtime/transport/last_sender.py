"""Of the sources of a job that send at the same tick, the last one runs the tasks that got rows of several of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BLOCKED_SECONDS = 0.01
"""A source that has not sent its rows so long after its tick is blocked: nothing is left to it."""


class LastSender:
    """What the sources of one job on this node leave to the one that sends last.

    A source announces its tick before it waits for it. While others with a tick that has passed have not sent yet, it
    leaves the runs of idle tasks to them, so that each task processes the rows of all of them at once.

    Parameters
    ----------
    clock : callable
        Returns the time, seconds since the epoch.

    Notes
    -----
    Every source calls `sent` after each tick, also when it ends or fails. The call returns what was left unless another
    source is still to send, and that one calls `sent` as well. If that one is blocked in code of its own, the next call
    of any other source returns what was left, or `overdue` does. It cannot wait for credit of a task whose run was left
    to it: before it waits, it takes what was left.

    Examples
    --------
    >>> last = LastSender(clock=lambda: 5.0)
    >>> last.announce(tick=5.0)
    >>> last.leave(lambda: None), last.sent()
    (False, [])
    """

    def __init__(self, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._lock = threading.Lock()
        # The tick at which the source of a thread sends.
        self._ticks: dict[int, float] = {}
        self._left: list[Callable[[], None]] = []
        self._left_at = 0.0

    def announce(self, tick: float) -> None:
        """Note when the source of this thread sends next."""
        with self._lock:
            self._ticks[threading.get_ident()] = tick

    def leave(self, act: Callable[[], None]) -> bool:
        """Leave a run to another source that is still to send; returns False if the caller has to see to it.

        Only a source that is sending may leave anything.
        """
        thread = threading.get_ident()
        if thread not in self._ticks:
            return False
        with self._lock:
            if not self._others_send(thread):
                return False
            if not self._left:
                self._left_at = self._clock()
            self._left.append(act)
            return True

    def sent(self, waits: bool = False) -> list[Callable[[], None]]:
        """Note that the source of this thread has sent, ends, or `waits`; returns what the caller carries out."""
        thread = threading.get_ident()
        if thread not in self._ticks and not self._left:
            return []
        with self._lock:
            self._ticks.pop(thread, None)
            return [] if self._others_send(thread) and not waits else self._taken()

    def overdue(self) -> list[Callable[[], None]]:
        """Return what was left to sources that are blocked; called from time to time."""
        if not self._left:
            return []
        with self._lock:
            return self._taken() if self._clock() - self._left_at > BLOCKED_SECONDS else []

    def _taken(self) -> list[Callable[[], None]]:
        left, self._left = self._left, []
        return left

    def _others_send(self, thread: int) -> bool:
        now = self._clock()
        return any(now - BLOCKED_SECONDS < tick <= now for other, tick in self._ticks.items() if other != thread)
