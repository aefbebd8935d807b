"""How often Python switches threads: a CPU-bound thread delays all others by up to one switch interval."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SWITCH_INTERVAL = 5e-4
"""Seconds between two switches of threads; short, so that event loops respond beside a CPU-bound thread."""

TURN = 1e-3
"""Seconds after which a CPU-bound thread yields."""

NAP = 1e-6
"""Any sleep yields the processor; on Linux this one lasts some 50 µs."""


class ShortTurns:
    """Makes a CPU-bound thread yield to others; called between the steps of its work.

    When a CPU-bound thread wakes another one, for example by releasing the GIL, the operating system may put that one
    on the same processor. There it waits for the next clock tick, 4 ms on common Linux, whatever Python's switch
    interval. A thread that sleeps releases the GIL and the processor at once.

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
        """Yield if the thread has run for `turn` seconds."""
        if self._clock() - self._began >= self._turn:
            self._sleep(NAP)
            self._began = self._clock()


class SwitchInterval:
    """The switch interval of this process, shortened while at least one user needs that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._saved = 0.0
        self._shortened = 0.0

    def shorten(self) -> None:
        """Add a user of the short interval."""
        with self._lock:
            if not self._users:
                self._saved = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_INTERVAL, self._saved))
                self._shortened = sys.getswitchinterval()
            self._users += 1

    def restore(self) -> None:
        """Remove a user of the short interval; after the last one the interval is what it was."""
        with self._lock:
            self._users -= 1
            # An interval that other code has set in the meantime stays.
            if not self._users and sys.getswitchinterval() == self._shortened:
                sys.setswitchinterval(self._saved)


INTERVAL = SwitchInterval()


@contextmanager
def responsive() -> Iterator[None]:
    """Keep the other threads of this process responsive while this one computes."""
    INTERVAL.shorten()
    try:
        yield
    finally:
        INTERVAL.restore()
