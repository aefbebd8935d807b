"""What a tuple spends outside of the queues, and how far the queues are off the model.

Measured is the latency from end to end, and the sojourn at each executor. What is left of the first when the second is
taken off is the hop: batching at the source, the way between workers, the emitters. What the sojourns are in parts of
what the model expects is its error: arrivals come in bursts, tasks do not share one queue, service times are not
exponential. Both are medians over the last moments at which they tell something.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

KEPT = 20
"""Moments that count."""

ENOUGH = 3
"""Moments before which nothing is said: a start is no measure of what follows."""

LEAST_ERROR, MOST_ERROR = 0.5, 4.0
"""Beyond that the model does not apply, and a factor would not mend it."""


class Hop:
    """Follows what the model does not know of a job.

    Examples
    --------
    >>> hop = Hop()
    >>> for _ in range(ENOUGH):
    ...     hop.add(latency=0.05, sojourn=0.03, modelled=0.02)
    >>> round(hop.seconds, 3), round(hop.error, 3)
    (0.02, 1.5)
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self._errors: deque[float] = deque(maxlen=KEPT)

    def add(self, latency: float | None, sojourn: float, modelled: float) -> None:
        """Note one moment at which no executor was overloaded.

        Parameters
        ----------
        latency : float or None
            Measured from end to end, in seconds.
        sojourn : float
            Measured at the executors, summed over the way of a tuple.
        modelled : float
            What the model says of the same.
        """
        if latency is not None:
            self._seconds.append(max(0.0, latency - sojourn))
        if 0 < modelled < math.inf:
            self._errors.append(sojourn / modelled)

    @property
    def seconds(self) -> float:
        """Seconds outside of the queues; 0 before enough is measured."""
        return statistics.median(self._seconds) if len(self._seconds) >= ENOUGH else 0.0

    @property
    def error(self) -> float:
        """Measured over modelled sojourn, within limits; 1 before enough is measured."""
        if len(self._errors) < ENOUGH:
            return 1.0
        return min(max(statistics.median(self._errors), LEAST_ERROR), MOST_ERROR)
