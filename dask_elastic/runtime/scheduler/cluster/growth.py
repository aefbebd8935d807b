"""Whether workers can be expected of a cluster that has none, and how many it may have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

ANNOUNCED_SECONDS = 30.0
"""A cluster that asked for the last time so long ago no longer grows by itself."""


class Growth:
    """What is known of a cluster that grows with its jobs.

    Parameters
    ----------
    clock : callable
        Returns seconds.

    Attributes
    ----------
    starting : set of str
        Names of the jobs that are being submitted, and perhaps wait for a first worker.

    Examples
    --------
    >>> growth = Growth(clock=lambda: 5.0)
    >>> growth.expected, growth.workers
    (False, 0)
    >>> growth.announce(4)
    >>> growth.expected, growth.workers
    (True, 4)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.starting: set[str] = set()
        self._clock = clock
        self._announced = -math.inf
        self._workers: int | None = None

    def announce(self, workers: int | None) -> None:
        """Note that the cluster grows with its jobs, to so many workers; None without a bound."""
        self._announced = self._clock()
        self._workers = workers

    @property
    def expected(self) -> bool:
        """Whether workers start when a job waits for them."""
        return self._clock() - self._announced < ANNOUNCED_SECONDS

    @property
    def workers(self) -> int:
        """The most workers that the cluster will have; 0 if it does not grow, or has no bound."""
        return (self._workers or 0) if self.expected else 0
