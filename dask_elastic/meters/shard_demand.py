"""What comes in for each shard, judged by as much of the last seconds as is like the present."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv

from dask_elastic.meters.ring import MeterError

Floats: TypeAlias = NDArray[np.float64]

STEP = 0.2
"""Seconds that a part of the window has at least: shares of shorter moments would be all noise."""

CHANCE = 1e-4
"""A change counts as a jump when chance alone would bring as much in such a part of all comparisons."""

TESTS = 16
"""So many of the last comparisons tell how uneven the input is when nothing jumps."""


class ShardDemand:
    """Rows per second that arrive for every shard of an executor.

    Parameters
    ----------
    shards : int
        How many shards the executor has.
    window : float
        How far back it looks at most, in seconds.

    Raises
    ------
    MeterError
        If there is no shard, or the window is shorter than a step.

    Attributes
    ----------
    jumps : int
        How often the shares of the shards have jumped.

    Notes
    -----
    Elasticutor, section 3.1, balances on the loads of the last second. When hot keys change, such a mean tells of the
    old ones for all of that second; a shorter one is so noisy that shards move for nothing while keys stay. So the
    newest step is held against those before by a χ² test of homogeneity. Where they differ by more than chance
    explains, what was before is forgotten; else the window grows again.

    Rows that come in clumps of one key differ more than independent ones do. The median of the last comparisons tells
    by how much; it takes the place of 1, which χ² by its degrees of freedom is for independent rows.

    Examples
    --------
    >>> demand = ShardDemand(shards=2)
    >>> for tick in range(5):
    ...     demand.note(np.array([400.0, 100.0]) * tick, now=tick * 0.25)
    >>> demand.per_second().tolist()
    [1600.0, 400.0]
    >>> demand.note(np.array([1620.0, 880.0]), now=1.25)
    >>> demand.per_second().tolist(), demand.jumps
    ([80.0, 1920.0], 1)
    """

    def __init__(self, shards: int, window: float = 2.0):
        if shards < 1:
            raise MeterError(f"shards is {shards!r}: an executor has at least 1.")
        if not (math.isfinite(window) and window >= STEP):
            raise MeterError(f"window is {window!r}: give at least {STEP} s.")
        self.window = window
        self.shards = shards
        self.jumps = 0
        self._marks: deque[tuple[float, Floats]] = deque()
        self._ratios: deque[float] = deque(maxlen=TESTS)

    def note(self, arrived: Floats, now: float) -> None:
        """Note how many rows have arrived so far.

        Parameters
        ----------
        arrived : float array
            Rows of each shard since the executor began.
        now : float
            The time in seconds.
        """
        marks = self._marks
        if marks and now - marks[-1][0] > self.window:
            # Nobody has looked for a while: such a step would tell of long ago.
            marks.clear()
        if marks and now - marks[-1][0] < STEP:
            return
        marks.append((now, arrived))
        while len(marks) > 2 and marks[1][0] <= now - self.window:
            marks.popleft()
        if len(marks) > 2 and self._has_jumped():
            self.jumps += 1
            while len(marks) > 2:
                marks.popleft()

    def per_second(self) -> Floats | None:
        """Return the rows per second of each shard since the last jump; None before there are two moments to compare.

        Returns
        -------
        float64 array or None
            One number for each shard.
        """
        if len(self._marks) < 2:
            return None
        (began, before), (ended, after) = self._marks[0], self._marks[-1]
        # Rows of a task that was lost may count twice for a while.
        came: Floats = np.maximum(after - before, 0.0) / (ended - began)
        return came

    def _has_jumped(self) -> bool:
        """Tell whether the shares of the newest step differ from those before."""
        first, last, newest = self._marks[0][1], self._marks[-2][1], self._marks[-1][1]
        ratio, freedom = _unlikeness(np.maximum(newest - last, 0.0), np.maximum(last - first, 0.0))
        if freedom == 0:
            return False
        usual = max(1.0, statistics.median(self._ratios)) if self._ratios else 1.0
        self._ratios.append(ratio)
        return ratio > usual * 2 * float(gammainccinv(freedom / 2, CHANCE)) / freedom


def _unlikeness(some: Floats, others: Floats) -> tuple[float, int]:
    """Return χ² by its degrees of freedom for two counts having the same shares, and the degrees of freedom."""
    total, rest = float(some.sum()), float(others.sum())
    both = some + others
    seen = both > 0
    freedom = int(seen.sum()) - 1
    if total <= 0 or rest <= 0 or freedom < 1:
        return 0.0, 0
    difference = some[seen] * math.sqrt(rest / total) - others[seen] * math.sqrt(total / rest)
    return float((difference**2 / both[seen]).sum()) / freedom, freedom
