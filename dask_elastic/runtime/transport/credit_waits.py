"""How long an instance waits for credit: the measure of backpressure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dask_elastic.meters import CounterRate, PhaseTime


class CreditWaits:
    """Measures the time in which at least one thread of an upstream instance waits for credit; thread-safe.

    Parameters
    ----------
    clock : callable
        Returns the time, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._waits = PhaseTime()
        self._recent = CounterRate()
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the wait of one thread; those that need not wait never come here."""
        with self._lock:
            self._waits.begin(self._clock())
        try:
            yield
        finally:
            with self._lock:
                self._waits.end(self._clock())

    def share(self) -> float:
        """Return the recent share of time with a waiting thread, from 0 to 1; called for each report of the worker."""
        with self._lock:
            now = self._clock()
            return min(1.0, self._recent.per_second(self._waits.total(now), now))
