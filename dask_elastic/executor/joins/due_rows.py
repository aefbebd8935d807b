"""Buffered rows by the time at which they are due, so that a watermark reads those that it makes due."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dask_elastic.state.index import Slots

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_TOGETHER = 4096
"""Rows of small batches are kept together up to this number."""


class DueRows:
    """Slots and the times at which they are due, in parts by the earliest time; used by one task.

    Examples
    --------
    >>> due = DueRows()
    >>> due.add(np.array([5, 9]), np.array([0, 1]))
    >>> due.pop(6, lambda slots: slots >= 0).tolist(), due.pop(6, lambda slots: slots >= 0).tolist()
    ([0], [])
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, int, Times, Slots]] = []
        self._added = 0
        self._small: list[tuple[Times, Slots]] = []
        self._small_rows = 0

    def add(self, times: Times, slots: Slots) -> None:
        """Add rows."""
        if not len(slots):
            return
        self._small.append((times, slots))
        self._small_rows += len(slots)
        if self._small_rows >= _TOGETHER:
            self._close()

    def pop(self, before: int, chosen: Callable[[Slots], Mask]) -> Slots:
        """Remove and return the slots that are due before a time, among those for which `chosen` returns True.

        Parameters
        ----------
        before : int
            The time, exclusive.
        chosen : callable
            Gets slots, returns a mask.

        Returns
        -------
        ndarray of intp
            The slots, in no particular order.
        """
        self._close()
        found, left = [np.empty(0, np.intp)], []
        while self._parts and self._parts[0][0] < before:
            _, _, times, slots = heapq.heappop(self._parts)
            due = (times < before) & chosen(slots)
            found.append(slots[due])
            if not due.all():
                left.append((times[~due], slots[~due]))
        for times, slots in left:
            self._push(times, slots)
        return np.concatenate(found)

    def keep(self, chosen: Callable[[Slots], Mask]) -> None:
        """Keep the rows for whose slots `chosen` returns True."""
        self._close()
        parts, self._parts = self._parts, []
        for _, _, times, slots in parts:
            kept = chosen(slots)
            if kept.any():
                self._push(times[kept], slots[kept])

    def _close(self) -> None:
        if self._small:
            times, slots = zip(*self._small, strict=True)
            self._small, self._small_rows = [], 0
            self._push(np.concatenate(times), np.concatenate(slots))

    def _push(self, times: Times, slots: Slots) -> None:
        self._added += 1
        heapq.heappush(self._parts, (int(times.min()), self._added, times, slots))
