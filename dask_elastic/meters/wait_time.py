"""Time for which threads have waited, such as senders for credit."""

from __future__ import annotations


class WaitTime:
    """Seconds in which at least one thread waited; the caller serialises the calls.

    Examples
    --------
    >>> waits = WaitTime()
    >>> waits.begin(1.0)
    >>> waits.begin(1.5)
    >>> waits.end(2.0)
    >>> waits.total(2.25)
    1.25
    >>> waits.end(3.0)
    >>> waits.total(9.0)
    2.0
    """

    def __init__(self) -> None:
        self._waiting = 0
        self._since = 0.0
        self._ended = 0.0

    def begin(self, now: float) -> None:
        """Note that a thread begins to wait."""
        if not self._waiting:
            self._since = now
        self._waiting += 1

    def end(self, now: float) -> None:
        """Note that a thread has ceased to wait."""
        self._waiting -= 1
        if not self._waiting:
            self._ended += max(0.0, now - self._since)

    def total(self, now: float) -> float:
        """Return the seconds so far, those of a thread that still waits included."""
        return self._ended + (max(0.0, now - self._since) if self._waiting else 0.0)
