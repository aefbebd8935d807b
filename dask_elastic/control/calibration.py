"""Calibration of the queueing model by measurements: the hop, and the ratio of measured to modelled sojourn.

The hop is the measured end-to-end latency minus the measured sojourn in all executors: batching at the source, the
network and the emitters. The error is the measured sojourn divided by the modelled one; it is not 1 because arrivals
come in bursts, tasks do not share one queue, and service times are not exponential. Both are medians over the last
suitable measurements.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

KEPT = 20
"""Number of measurements that are kept."""

ENOUGH = 3
"""Number of measurements required; until then the defaults apply, since the start of a job is not representative."""

LEAST_ERROR, MOST_ERROR = 0.5, 4.0
"""Bounds of the error; outside of them the model does not apply and a factor cannot correct it."""


class Calibration:
    """Medians of one job's hop and model error.

    Examples
    --------
    >>> calibration = Calibration()
    >>> for _ in range(ENOUGH):
    ...     calibration.add(latency=0.05, sojourn=0.03, modelled=0.02)
    >>> round(calibration.hop, 3), round(calibration.error, 3)
    (0.02, 1.5)
    """

    def __init__(self) -> None:
        self._hops: deque[float] = deque(maxlen=KEPT)
        self._errors: deque[float] = deque(maxlen=KEPT)

    def add(self, latency: float | None, sojourn: float, modelled: float) -> None:
        """Add a measurement taken while no executor was overloaded.

        Parameters
        ----------
        latency : float or None
            Measured end-to-end latency in seconds.
        sojourn : float
            Measured sojourn in seconds, summed over the executors that a tuple passes.
        modelled : float
            The model's value of the same sum.
        """
        if latency is not None:
            self._hops.append(max(0.0, latency - sojourn))
        if 0 < modelled < math.inf:
            self._errors.append(sojourn / modelled)

    @property
    def hop(self) -> float:
        """Seconds of latency outside of the executors; 0 until there are enough measurements."""
        return statistics.median(self._hops) if len(self._hops) >= ENOUGH else 0.0

    @property
    def error(self) -> float:
        """Measured divided by modelled sojourn, within bounds; 1 until there are enough measurements."""
        if len(self._errors) < ENOUGH:
            return 1.0
        return min(max(statistics.median(self._errors), LEAST_ERROR), MOST_ERROR)
