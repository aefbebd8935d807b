"""The rows that figures draw of a job over time; all viewers share them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.history import SERIES

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory

    Layout = tuple[tuple[str, ...], tuple[str, ...]]

COLUMNS = (*SERIES, "moved")
"""Columns of a time series besides cores; `moved` is the number of shard moves since the previous row."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of a time series.

    Parameters
    ----------
    times : array of float, shape (rows,)
        Seconds since 1970.
    series : mapping of str to array of float, shape (rows,)
        Values by the names in `COLUMNS`; NaN where unknown.
    executors, nodes : array of float, shape (rows, names)
        Cores of each executor, and on each node.
    """

    times: NDArray[np.float64]
    series: dict[str, NDArray[np.float64]]
    executors: NDArray[np.float64]
    nodes: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.times)


class TimeSeries:
    """The newest rows of one job's history in one array.

    A viewer stores `layout_version` and `end`, and later asks for the rows `since` that end. If `layout_version` has
    changed, the job has other executors or nodes than before, and the viewer draws all rows again.

    Parameters
    ----------
    length : int
        Number of rows kept.

    Attributes
    ----------
    layout_version : int
        Number of changes of the executors or nodes.
    end : int
        Number of rows added since the last such change.
    """

    def __init__(self, length: int = 600):
        self.layout_version = 0
        self.end = 0
        self.executors: tuple[str, ...] = ()
        self.nodes: tuple[str, ...] = ()
        self._length = length
        self._layout: Layout | None = None
        self._array = np.empty((0, 0))
        self._filled = 0
        self._last = -math.inf

    def update(self, job: JobHistory) -> None:
        """Append the history's new rows."""
        times = job.times
        if times and times[-1] == self._last:
            return
        layout = (job.executors, job.nodes)
        if layout != self._layout or times[-1] < self._last:
            # Of another layout, or of times that come again.
            self._begin(layout)
        fresh = min(len(times) - bisect_right(times, self._last), self._length)
        moves = job.series("moves")
        before = moves[-fresh - 1] if len(moves) > fresh else moves[0]
        moved = np.diff(np.array([before, *moves[-fresh:]])).clip(min=0)
        series = [job.series(name)[-fresh:] for name in SERIES]
        cores = [*job.cores_by_executor(fresh).values(), *job.cores_by_node(fresh).values()]
        block = np.array([times[-fresh:], *series, moved, *cores], dtype=np.float64).T
        # The predicted latency is infinite while a queue grows; an axis cannot show that.
        self._append(np.where(np.isfinite(block), block, np.nan))

    def _begin(self, layout: Layout) -> None:
        self._layout = layout
        self.layout_version += 1
        self.end = self._filled = 0
        self._last = -math.inf
        self.executors, self.nodes = layout
        width = 1 + len(COLUMNS) + len(self.executors) + len(self.nodes)
        self._array = np.empty((2 * self._length, width))

    def _append(self, block: NDArray[np.float64]) -> None:
        if self._filled + len(block) > len(self._array):
            kept = self._array[self._filled - self._length : self._filled].copy()
            self._array[: self._length] = kept
            self._filled = self._length
        self._array[self._filled : self._filled + len(block)] = block
        self._filled += len(block)
        self.end += len(block)
        self._last = float(block[-1, 0])

    def since(self, end: int) -> Rows:
        """Return the rows added after `end`, as far as they are still kept."""
        count = min(self.end - end, self._filled, self._length)
        rows = self._array[self._filled - count : self._filled].copy()
        first_node = 1 + len(COLUMNS) + len(self.executors)
        return Rows(
            times=rows[:, 0],
            series={name: rows[:, 1 + place] for place, name in enumerate(COLUMNS)},
            executors=rows[:, 1 + len(COLUMNS) : first_node],
            nodes=rows[:, first_node:],
        )


class TimeSeriesStore:
    """The time series of jobs; each is updated only when a viewer reads it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[JobHistory, TimeSeries]] = {}

    def of(self, job: JobHistory) -> TimeSeries:
        """Return the time series of a job, with the job's newest rows."""
        name = job.latest().name
        known, series = self._known.get(name, (None, None))
        if series is None or known is not job:
            series = TimeSeries()
            self._known[name] = (job, series)
        series.update(job)
        return series

    def keep(self, names: Collection[str]) -> None:
        """Drop the time series of all jobs that are not in `names`."""
        for name in [name for name in self._known if name not in names]:
            del self._known[name]
