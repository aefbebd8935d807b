"""Bytes per second that an executor gets from each upstream instance."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping
from typing import Generic, TypeVar

Origin = TypeVar("Origin")

KEPT = 16
"""Instances whose rates are returned, at most, so that reports of executors with a thousand inputs stay small."""


class InputTraffic(Generic[Origin]):
    """Turns the bytes so far by upstream instance into rates over a recent window.

    Parameters
    ----------
    window : float
        The rates are means over so many seconds, or up to one reading more.

    Attributes
    ----------
    nbytes : Counter
        Bytes so far by upstream instance. The data path adds to it directly, without a call per batch.

    Notes
    -----
    ALBIC, section 4.3.2, step 1: only pairs with more traffic than the mean of a group are collocated, so that the
    heaviest inputs of each executor suffice.

    Examples
    --------
    >>> traffic = InputTraffic(window=2.0)
    >>> traffic.per_second(0.0)
    ()
    >>> traffic.nbytes["a"] += 100
    >>> traffic.nbytes["b"] += 300
    >>> traffic.per_second(1.0), traffic.per_second(60.0)
    ((('b', 300.0), ('a', 100.0)), ())
    """

    def __init__(self, window: float):
        self.window = window
        self.nbytes: Counter[Origin] = Counter()
        self._readings: deque[tuple[float, Mapping[Origin, int]]] = deque()

    def per_second(self, now: float) -> tuple[tuple[Origin, float], ...]:
        """Return the recent rates, highest first; called for each report.

        Parameters
        ----------
        now : float
            The time in seconds. If the clock was set back, there are no rates until the next call.

        Returns
        -------
        tuple of (origin, float)
            Upstream instances with bytes per second, at most `KEPT`; those that sent nothing are left out.
        """
        readings = self._readings
        if readings and now < readings[-1][0] - self.window:
            readings.clear()
        # The oldest reading that is kept is the newest one before the window.
        while len(readings) > 1 and readings[1][0] <= now - self.window:
            readings.popleft()
        seen = dict(self.nbytes)
        since, before = readings[0] if readings else (now, seen)
        if not readings or now > readings[-1][0]:
            readings.append((now, seen))
        if now <= since:
            return ()
        rates = [
            (origin, (total - before.get(origin, 0)) / (now - since))
            for origin, total in seen.items()
            if total > before.get(origin, 0)
        ]
        return tuple(heapq.nlargest(KEPT, rates, key=_rate))


def _rate(part: tuple[object, float]) -> float:
    return part[1]
