"""Which instances of windows over event time rows are in: whether they take a row, and which of them close."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.windows.event_times import Times
from dask_elastic.state.slot_search import Mask
from dask_elastic.topology.windowing import MOST, EventWindow, SessionWindow, Windowing
from dask_elastic.vocab.row_counts import RowCounts

Bounds = tuple[int, int]
"""Begin and end of an instance."""

_DENSE = 4
"""Ranges of instances are counted, not sorted, with up to so many instances for each row."""


class Judged(NamedTuple):
    """What becomes of rows.

    Parameters
    ----------
    kept : ndarray of bool
        The rows that an instance takes.
    late : ndarray of bool
        The rows that come too late for all instances that contain them.
    counts : RowCounts
        The counts of all rows.
    """

    kept: Mask
    late: Mask
    counts: RowCounts


class RowInstances:
    """The instances of windows over event time that contain rows, each of which stands for a span of time.

    A row at a point in time stands for the microsecond that begins with it.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.

    Examples
    --------
    >>> instances = RowInstances(Windowing((EventWindow(0, 30, 10),), ("at",)))
    >>> begins = np.array([3, 25])
    >>> judged = instances.judge(begins, begins + 1, reached=30)
    >>> judged.kept.tolist(), judged.counts
    ([False, True], RowCounts(on_time=2, corrected=0, late=4, outside=0, untimed=0))
    >>> instances.closing(begins, begins + 1, since=10, until=40)
    [(-10, 20), (0, 30), (10, 40)]
    """

    def __init__(self, windowing: Windowing) -> None:
        self._windows = [window for window in windowing.windows if isinstance(window, EventWindow)]
        self._lateness = windowing.allowed_lateness

    def judge(self, begins: Times, ends: Times, reached: int) -> Judged:
        """Return what becomes of rows that come when the instances up to an event time are closed."""
        total, closed, late = (np.zeros(len(begins), np.int64) for _ in range(3))
        for window in self._windows:
            first, last = _containing(window, begins, ends)
            total += np.maximum(last - first + 1, 0)
            closed += _ended(window, first, last, reached)
            late += _ended(window, first, last, reached - self._lateness)
        on_time, corrected, too_late = (int(each.sum()) for each in (total - closed, closed - late, late))
        counts = RowCounts(on_time, corrected, too_late, int(np.count_nonzero(total == 0)))
        return Judged(late < total, (late == total) & (total > 0), counts)

    def due(self, begins: Times, ends: Times, since: int, until: int) -> Mask:
        """Return which rows are in an instance that ends later than `since` and not later than `until`."""
        found = np.zeros(len(begins), np.bool_)
        for window in self._windows:
            first, last = _range(window, begins, ends, since, until)
            found |= first <= last
        return found

    def expired(self, begins: Times, ends: Times, reached: int) -> Mask:
        """Return which rows no instance needs that closes later, or may be corrected."""
        needed = np.zeros(len(begins), np.bool_)
        for window in self._windows:
            first, last = _containing(window, begins, ends)
            needed |= (first <= last) & (last > _last_ended(window, reached - self._lateness))
        return ~needed

    def closing(self, begins: Times, ends: Times, since: int, until: int) -> list[Bounds]:
        """Return the instances that contain a row, and end later than `since` and not later than `until`.

        Parameters
        ----------
        begins, ends : ndarray of int64
            The spans of the rows.
        since, until : int
            The span of event time.

        Returns
        -------
        list of (int, int)
            Begin and end of each, in the order of ends, then begins.
        """
        found: set[Bounds] = set()
        for window in self._windows:
            first, last = _range(window, begins, ends, since, until)
            some = first <= last
            for number in _numbers(first[some], last[some]).tolist():
                begin = window.start + number * window.frequency
                found.add((begin, begin + window.length))
        return sorted(found, key=lambda bounds: (bounds[1], bounds[0]))


class RowSessions:
    """What becomes of rows of sessions; see `RowInstances`.

    Parameters
    ----------
    windowing : Windowing
        One session window.

    Examples
    --------
    >>> sessions = RowSessions(Windowing((SessionWindow(10),), ("at",)))
    >>> sessions.judge(np.array([3, 17]), np.array([4, 18]), reached=13).kept.tolist()
    [False, True]
    """

    def __init__(self, windowing: Windowing) -> None:
        window = windowing.windows[0]
        assert isinstance(window, SessionWindow)
        self.gap = window.gap

    def judge(self, begins: Times, ends: Times, reached: int) -> Judged:
        """Return what becomes of rows: one is late if a session of it alone would be closed."""
        late = begins <= reached - self.gap
        count = int(np.count_nonzero(late))
        return Judged(~late, late, RowCounts(on_time=len(late) - count, late=count))


def _containing(window: EventWindow, begins: Times, ends: Times) -> tuple[Times, Times]:
    """Return the numbers of the first and the last instance that contain each span; none if they cross."""
    last = (begins - window.start) // window.frequency
    first = -((window.start + window.length - ends) // window.frequency)
    return first, last


def _last_ended(window: EventWindow, reached: int) -> int:
    return max(-MOST, min(MOST, (reached - window.length - window.start) // window.frequency))


def _ended(window: EventWindow, first: Times, last: Times, reached: int) -> Times:
    """Return how many of the instances from `first` to `last` end at a time or before."""
    found: Times = np.maximum(np.minimum(last, _last_ended(window, reached)) - first + 1, 0)
    return found


def _range(window: EventWindow, begins: Times, ends: Times, since: int, until: int) -> tuple[Times, Times]:
    first, last = _containing(window, begins, ends)
    return np.maximum(first, _last_ended(window, since) + 1), np.minimum(last, _last_ended(window, until))


def _numbers(first: Times, last: Times) -> npt.NDArray[np.int64]:
    """Return the distinct numbers in ranges."""
    if not len(first):
        return first
    least, most = int(first.min()), int(last.max())
    if most - least <= _DENSE * len(first) + 1024:
        opened = np.bincount(first - least, minlength=most - least + 2)
        opened -= np.bincount(last - least + 1, minlength=most - least + 2)
        return least + np.flatnonzero(np.cumsum(opened)[:-1])
    distinct = np.unique(np.stack([first, last], axis=1), axis=0)
    parts = [np.arange(low, high + 1) for low, high in distinct.tolist()]
    return np.unique(np.concatenate(parts))
