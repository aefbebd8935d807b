"""Usual processing time of small batches, to decide whether the thread that brings a batch processes it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

KEPT = 15
"""Batches that are kept; their median is not raised by single batches that waited for the interpreter."""

FEWEST = 5
"""Batches that must have been measured."""


class InlineCost:
    """Estimates the processing time of a small batch from the median of recent ones.

    Notes
    -----
    A mean would not do. A batch of 50 µs that waits for the interpreter may take milliseconds; with the mean, a busy
    process would hand all batches from thread to thread, and thereby become busier.

    `add` must not be called by two threads at a time.

    Examples
    --------
    >>> cost = InlineCost()
    >>> for busy in (0.0001, 0.0001, 0.005, 0.0001, 0.0001):
    ...     cost.add(4, busy)
    >>> cost.expected(2), cost.expected(8), cost.allows(8, seconds=0.00015)
    (0.0001, 0.0002, False)
    """

    __slots__ = ("_batches", "_busy", "_ordered", "_rows")

    def __init__(self) -> None:
        self._batches: deque[tuple[float, int]] = deque()
        self._ordered: list[tuple[float, int]] = []
        self._busy: float | None = None
        self._rows = 1

    def add(self, rows: int, busy: float) -> None:
        """Add the measurement of one batch.

        Parameters
        ----------
        rows : int
            The number of its rows.
        busy : float
            Its processing time in seconds.
        """
        batches, ordered = self._batches, self._ordered
        if len(batches) == KEPT:
            del ordered[bisect_left(ordered, batches.popleft())]
        measured = (busy, rows)
        batches.append(measured)
        insort(ordered, measured)
        count = len(ordered)
        if count >= FEWEST:
            self._busy, self._rows = ordered[count // 2]

    def expected(self, rows: int) -> float | None:
        """Return the processing time of a batch in seconds, an upper bound if it is larger than the recent ones.

        Returns
        -------
        float or None
            Seconds; None until a few batches have been measured.
        """
        return None if self._busy is None else self._busy * max(1.0, rows / self._rows)

    def allows(self, rows: int, seconds: float) -> bool:
        """Whether a batch is expected to take at most so many seconds."""
        busy = self._busy
        if busy is None:
            return False
        return busy <= seconds if rows <= self._rows else busy * (rows / self._rows) <= seconds
