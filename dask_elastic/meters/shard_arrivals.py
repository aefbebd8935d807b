"""Arrival rate of each shard, over the recent time in which the distribution of keys has not changed."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dask_elastic.meters.chi_squared import chi_squared_above
from dask_elastic.meters.ring import MeterError

Floats: TypeAlias = NDArray[np.float64]

STEP = 0.2
"""Minimum length of a step in seconds; the shares of shards over a shorter time are dominated by noise."""

COMPARED_SECONDS = 1.0
"""Window of arrivals that are compared between executors (Elasticutor, section 3.1); shorter ones are too noisy."""

LATE_SECONDS = 10.0
"""A call may be late by so much, while it waits for a batch; by more only if the clock was set back."""

CHANCE = 1e-4
"""Significance level: probability that a comparison reports a jump although the shares are the same."""

TESTS = 16
"""Number of last comparisons from which the dispersion of the input without jumps is estimated."""


class ShardArrivals:
    """Rows per second that arrive for each shard of an executor.

    Parameters
    ----------
    shards : int
        The number of shards of the executor.
    window : float
        The maximum length of the window in seconds.
    finds_jumps : bool
        Whether a change of the shards' shares, or a long time without a call, shortens the window. Without it, windows
        of several executors are of the same length, or of one step if that is longer, so that their rates can be
        compared.

    Raises
    ------
    MeterError
        If there is no shard, or the window is shorter than a step.

    Attributes
    ----------
    jumps : int
        How often the shards' shares of the rows have jumped.
    steady_since : float or None
        The time of the last jump, or of the first measurement if there was none; None before.

    Notes
    -----
    Elasticutor, section 3.1, balances on the loads of the last second. After a change of hot keys, such a mean still
    reflects the old keys for that second; a shorter mean is so noisy that shards move without need. Each new step is
    therefore compared with the previous ones by a χ² test of homogeneity. If the difference is significant, the
    previous steps are dropped; otherwise the window grows up to its maximum.

    Rows that arrive in groups of one key vary more than independent rows. The median of the last test statistics
    measures this dispersion; it replaces 1, the expected χ² per degree of freedom of independent rows.

    Examples
    --------
    >>> arrivals = ShardArrivals(shards=2)
    >>> for tick in range(5):
    ...     arrivals.note(np.array([400.0, 100.0]) * tick, now=tick * 0.25)
    >>> arrivals.per_second().tolist()
    [1600.0, 400.0]
    >>> arrivals.note(np.array([1620.0, 880.0]), now=1.25)
    >>> arrivals.per_second().tolist(), arrivals.jumps
    ([80.0, 1920.0], 1)
    """

    def __init__(self, shards: int, window: float = 2.0, finds_jumps: bool = True):
        if shards < 1:
            raise MeterError(f"shards is {shards!r}: an executor has at least 1.")
        if not (math.isfinite(window) and window >= STEP):
            raise MeterError(f"window is {window!r}: give at least {STEP} s.")
        self.window = window
        self.shards = shards
        self.finds_jumps = finds_jumps
        self.jumps = 0
        self.steady_since: float | None = None
        self._marks: deque[tuple[float, Floats]] = deque()
        self._ratios: deque[float] = deque(maxlen=TESTS)

    def note(self, arrived: Floats, now: float) -> None:
        """Add the current counts of arrived rows.

        Parameters
        ----------
        arrived : float array
            Rows of each shard since the executor started.
        now : float
            The time in seconds.
        """
        marks = self._marks
        if marks and (now < marks[-1][0] - LATE_SECONDS or (self.finds_jumps and now - marks[-1][0] > self.window)):
            # The last call is too long ago: a step since then would not reflect the present. Or the clock was set back.
            marks.clear()
            self.steady_since = None
        if self.steady_since is None:
            self.steady_since = now
        if marks and now - marks[-1][0] < STEP:
            return
        marks.append((now, arrived))
        while len(marks) > 2 and marks[1][0] <= now - self.window:
            marks.popleft()
        if self.finds_jumps and len(marks) > 2 and self._has_jumped():
            self.jumps += 1
            self.steady_since = now
            while len(marks) > 2:
                marks.popleft()

    def per_second(self) -> Floats | None:
        """Return the rows per second of each shard, within the window and since the last jump.

        Returns
        -------
        float64 array or None
            One number per shard; None until there are two measurements.
        """
        if len(self._marks) < 2:
            return None
        (began, before), (ended, after) = self._marks[0], self._marks[-1]
        # Counts may fall: rows of a lost task count twice until its replay has finished.
        rates: Floats = np.maximum(after - before, 0.0) / (ended - began)
        return rates

    def _has_jumped(self) -> bool:
        """Return whether the shards' shares in the newest step differ significantly from those before."""
        first, last, newest = self._marks[0][1], self._marks[-2][1], self._marks[-1][1]
        ratio, freedom = _chi_squared(np.maximum(newest - last, 0.0), np.maximum(last - first, 0.0))
        if freedom == 0:
            return False
        usual = max(1.0, statistics.median(self._ratios)) if self._ratios else 1.0
        self._ratios.append(ratio)
        return ratio > usual * chi_squared_above(CHANCE, freedom) / freedom


def _chi_squared(some: Floats, others: Floats) -> tuple[float, int]:
    """Return χ² per degree of freedom for the homogeneity of two vectors of counts, and the degrees of freedom."""
    total, rest = float(some.sum()), float(others.sum())
    both = some + others
    seen = both > 0
    freedom = int(seen.sum()) - 1
    if total <= 0 or rest <= 0 or freedom < 1:
        return 0.0, 0
    difference = some[seen] * math.sqrt(rest / total) - others[seen] * math.sqrt(total / rest)
    return float((difference**2 / both[seen]).sum()) / freedom, freedom
