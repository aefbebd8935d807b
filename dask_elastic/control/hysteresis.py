"""Cores are given back late: only what was not needed for a while, and later still where that was a mistake before."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

Cores = NDArray[np.int64]

MOST_DOUBLINGS = 3
"""How often the time of waiting may double."""

REGRET = 3.0
"""Cores that are wanted again within so many times the time of waiting were given back too early."""

SAME_LOAD = 1.25
"""A load of no more than so many times that of before is the same load: then nothing but the release is to blame."""


class Hysteresis:
    """Remembers what the executors of one job have needed.

    Parameters
    ----------
    seconds : float
        How long a surplus must last.

    Notes
    -----
    What an executor may give back is what exceeds the *most* that it has needed over all of that time, so that a load
    around the border between two numbers of cores does not make cores come and go. Where cores are wanted again soon
    after they were given back, although the load is the same, the release was a mistake: the time doubles, up to
    eightfold, and halves again after as long a time without a mistake.

    Examples
    --------
    >>> hysteresis = Hysteresis(seconds=10.0)
    >>> for second in range(11):
    ...     hysteresis.add(float(second), np.array([5 if second == 3 else 2]))
    >>> hysteresis.most(10.0, np.array([8])).tolist()
    [5]
    """

    def __init__(self, seconds: float):
        self._base = seconds
        self._doublings = 0
        self._needs: deque[tuple[float, Cores]] = deque()
        self._since: float | None = None
        self._released: tuple[float, float] | None = None
        self._doubted: tuple[float, float] | None = None
        self._mistaken = -math.inf

    @property
    def seconds(self) -> float:
        """How long a surplus must last now."""
        return float(self._base * 2**self._doublings)

    def add(self, now: float, needed: Cores) -> None:
        """Note what each executor needs at this moment."""
        if self._since is None:
            self._since = now
        self._needs.append((now, needed))
        while self._needs[0][0] < now - self._base * 2**MOST_DOUBLINGS:
            self._needs.popleft()

    def most(self, now: float, current: Cores, seconds: float | None = None) -> Cores:
        """Return the most cores that each executor has needed; what it has while too little is known.

        Parameters
        ----------
        now : float
            The time.
        current : array of int
            What each executor has.
        seconds : float, optional
            How far to look back; by default as long as a surplus must last.
        """
        span = self.seconds if seconds is None else seconds
        if self._since is None or now - self._since < span:
            return current
        most: Cores = np.max([needed for time, needed in self._needs if time >= now - span], axis=0)
        return most

    def released(self, now: float, load: float) -> None:
        """Note that cores are given back at that load."""
        self._released = (now, load)

    def grown(self, now: float) -> None:
        """Note that cores are wanted."""
        if self._released is not None and now - self._released[0] <= REGRET * self.seconds:
            self._doubted = self._released
        self._released = None

    def calm(self, now: float, load: float) -> None:
        """Note that cores are enough at that load: now it shows whether a release was a mistake.

        While an executor is overloaded its load is not known, so whether the load has risen is not, either.
        """
        if self._doubted is not None:
            if load <= SAME_LOAD * self._doubted[1]:
                self._doublings = min(self._doublings + 1, MOST_DOUBLINGS)
                self._mistaken = now
            self._doubted = None
        elif self._doublings and now - self._mistaken > 2 * REGRET * self.seconds:
            self._doublings -= 1
            self._mistaken = now
