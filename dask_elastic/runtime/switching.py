"""How often Python's threads take turns: a thread that computes in Python keeps the others waiting for as long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL = 5e-4
"""Seconds between two switches of threads: beside a thread that holds the GIL, event loops stay responsive."""


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
