"""How often Python's threads take turns: a thread that computes in Python keeps the others waiting for as long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SWITCH_INTERVAL = 5e-4
"""Seconds between two switches of threads: beside a thread that holds the GIL, event loops stay responsive."""

TURN = 1e-3
"""Seconds after which a thread that computes steps aside."""

NAP = 1e-6
"""Any sleep will do: it is leaving the processor that lets others run, and Linux makes some 50 µs of it."""


class ShortTurns:
    """Steps aside for a moment where this thread has computed for long; to be called between the steps of its work.

    A thread that is woken by the one that computes, as by handing over the GIL, may be put on the same processor and
    has to wait there until the operating system looks again, 4 ms with Linux's usual clock. No switch interval shortens
    that, while a thread that sleeps gives both up at once.

    Parameters
    ----------
    turn : float
        Seconds between two naps.
    clock, sleep : callable
        Return seconds, and wait for some.

    Examples
    --------
    >>> naps, seconds = [], iter([0.0, 0.0004, 0.0012, 0.0012, 0.0013])
    >>> pause = ShortTurns(turn=0.001, clock=lambda: next(seconds), sleep=naps.append)
    >>> pause(), len(naps)
    (None, 0)
    >>> pause(), len(naps)
    (None, 1)
    """

    def __init__(
        self,
        turn: float = TURN,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ):
        self._turn = turn
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def __call__(self) -> None:
        """Step aside if it is time to."""
        if self._clock() - self._began >= self._turn:
            self._sleep(NAP)
            self._began = self._clock()


class SwitchInterval:
    """The interval of this process, shortened while anybody asks for it; several may, and in any order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._saved = 0.0
        self._shortened = 0.0

    def shorten(self) -> None:
        """Ask for short turns."""
        with self._lock:
            if not self._users:
                self._saved = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_INTERVAL, self._saved))
                self._shortened = sys.getswitchinterval()
            self._users += 1

    def restore(self) -> None:
        """Ask for them no longer; after the last one turns are as long as they were."""
        with self._lock:
            self._users -= 1
            # What somebody else has chosen since then stays.
            if not self._users and sys.getswitchinterval() == self._shortened:
                sys.setswitchinterval(self._saved)


INTERVAL = SwitchInterval()


@contextmanager
def responsive() -> Iterator[None]:
    """Keep the other threads of this process responsive while something is computed in this one."""
    INTERVAL.shorten()
    try:
        yield
    finally:
        INTERVAL.restore()
