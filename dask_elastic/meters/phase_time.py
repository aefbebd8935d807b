"""Time that threads spend in a phase, such as the wait for credit."""

from __future__ import annotations


class PhaseTime:
    """Seconds in which at least one thread was in the phase; the caller serialises `begin` and `end`.

    Examples
    --------
    >>> waits = PhaseTime()
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
        self._threads = 0
        self._since = 0.0
        self._ended = 0.0

    def begin(self, now: float) -> None:
        """Note that a thread enters the phase."""
        if not self._threads:
            self._since = now
        self._threads += 1

    def end(self, now: float) -> None:
        """Note that a thread leaves the phase."""
        self._threads -= 1
        if not self._threads:
            self._ended += max(0.0, now - self._since)

    def total(self, now: float) -> float:
        """Return the seconds so far, those of a thread that is still in the phase included."""
        return self._ended + (max(0.0, now - self._since) if self._threads else 0.0)
