"""Delayed release of cores: only a surplus that has lasted is released, later if a release was premature before."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

Cores = NDArray[np.int64]

MOST_DOUBLINGS = 3
"""How often the waiting time may double."""

REGRET = 3.0
"""A release is premature if cores are wanted again within this many waiting times."""

SAME_LOAD = 1.25
"""Loads up to this factor above the previous one count as equal; growth then is due to the release."""


class Hysteresis:
    """The cores that the executors of one job have needed over time.

    Parameters
    ----------
    seconds : float
        How long a surplus must last before it is released.

    Notes
    -----
    An executor may release what exceeds the *largest* number of cores it has needed over this whole time, so that a
    load at the border between two numbers of cores causes no flapping. If cores are wanted again soon after a release
    although the load is the same, the release was premature: the time doubles, up to eightfold, and halves again after
    a correspondingly long time without a premature release.

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
        self._suspected: tuple[float, float] | None = None
        self._last_premature = -math.inf

    @property
    def seconds(self) -> float:
        """How long a surplus must currently last."""
        return float(self._base * 2**self._doublings)

    def add(self, now: float, needed: Cores) -> None:
        """Add the cores that each executor needs now.

        Parameters
        ----------
        now : float
            The time in seconds.
        needed : array of int
            Cores per executor.
        """
        if self._since is None:
            self._since = now
        self._needs.append((now, needed))
        while self._needs[0][0] < now - self._base * 2**MOST_DOUBLINGS:
            self._needs.popleft()

    def most(self, now: float, current: Cores, seconds: float | None = None) -> Cores:
        """Return the largest number of cores each executor has needed recently.

        Parameters
        ----------
        now : float
            The time in seconds.
        current : array of int
            The cores each executor has.
        seconds : float, optional
            How far to look back; by default as long as a surplus must last.

        Returns
        -------
        array of int
            Cores per executor; `current` if the recorded time is shorter than `seconds`.
        """
        span = self.seconds if seconds is None else seconds
        if self._since is None or now - self._since < span:
            return current
        most: Cores = np.max([needed for time, needed in self._needs if time >= now - span], axis=0)
        return most

    def released(self, now: float, load: float) -> None:
        """Record that cores are released at a load.

        Parameters
        ----------
        now : float
            The time in seconds.
        load : float
            Total load of the job, in cores.
        """
        self._released = (now, load)

    def grown(self, now: float) -> None:
        """Record that more cores are wanted."""
        if self._released is not None and now - self._released[0] <= REGRET * self.seconds:
            self._suspected = self._released
        self._released = None

    def calm(self, now: float, load: float) -> None:
        """Record that the cores suffice for a load, and determine whether the last release was premature.

        This can be determined only now: while an executor is overloaded its load, and whether it has risen, is unknown.

        Parameters
        ----------
        now : float
            The time in seconds.
        load : float
            Total load of the job, in cores.
        """
        if self._suspected is not None:
            if load <= SAME_LOAD * self._suspected[1]:
                self._doublings = min(self._doublings + 1, MOST_DOUBLINGS)
                self._last_premature = now
            self._suspected = None
        elif self._doublings and now - self._last_premature > 2 * REGRET * self.seconds:
            self._doublings -= 1
            self._last_premature = now
