"""What is drawn of a job over time, as columns that grow at their end; all viewers read the same ones."""

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
"""What a tape has of a job besides cores; `moved` is how many shards moved since the row before."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A stretch of a tape.

    Parameters
    ----------
    times : array of float, shape (rows,)
        Seconds since the epoch.
    series : mapping of str to array of float, shape (rows,)
        By the names in `COLUMNS`; NaN where unknown.
    executors, nodes : array of float, shape (rows, names)
        Cores of each executor, and on each node.
    """

    times: NDArray[np.float64]
    series: dict[str, NDArray[np.float64]]
    executors: NDArray[np.float64]
    nodes: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.times)


class Tape:
    """The newest rows of one job's history in one array.

    A viewer remembers `run` and `end` as they were when it last looked, and asks for the rows `since` then. When `run`
    has changed, the job is on other nodes than before, and the viewer draws everything again.

    Parameters
    ----------
    length : int
        How many rows are kept.
    """

    def __init__(self, length: int = 600):
        self.run = 0
        self.end = 0
        self.executors: tuple[str, ...] = ()
        self.nodes: tuple[str, ...] = ()
        self._length = length
        self._layout: Layout | None = None
        self._array = np.empty((0, 0))
        self._filled = 0
        self._last = -math.inf

    def take(self, job: JobHistory) -> None:
        """Append what the history has and the tape has not."""
        times = job.times
        if times and times[-1] == self._last:
            return
        by_executor, by_node = job.cores_by_executor(), job.cores_by_node()
        layout = (tuple(by_executor), tuple(by_node))
        if layout != self._layout:
            self._begin(layout)
        fresh = min(len(times) - bisect_right(times, self._last), self._length)
        moves = job.series("moves")
        before = moves[-fresh - 1] if len(moves) > fresh else moves[0]
        moved = np.diff(np.array([before, *moves[-fresh:]])).clip(min=0)
        series = [job.series(name)[-fresh:] for name in SERIES]
        cores = [counts[-fresh:] for counts in (*by_executor.values(), *by_node.values())]
        block = np.array([times[-fresh:], *series, moved, *cores], dtype=np.float64).T
        # What is expected of a queue that grows is infinite, and has no place on an axis.
        self._append(np.where(np.isfinite(block), block, np.nan))

    def _begin(self, layout: Layout) -> None:
        self._layout = layout
        self.run += 1
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
        """Return the rows that came after the tape's end was `end`, as far as they are still there."""
        count = min(self.end - end, self._filled, self._length)
        rows = self._array[self._filled - count : self._filled].copy()
        first_node = 1 + len(COLUMNS) + len(self.executors)
        return Rows(
            times=rows[:, 0],
            series={name: rows[:, 1 + place] for place, name in enumerate(COLUMNS)},
            executors=rows[:, 1 + len(COLUMNS) : first_node],
            nodes=rows[:, first_node:],
        )


class Tapes:
    """The tapes of jobs; one that nobody looks at is not kept up to date, and costs nothing."""

    def __init__(self) -> None:
        self._tapes: dict[str, tuple[JobHistory, Tape]] = {}

    def of(self, job: JobHistory) -> Tape:
        """Return the tape of a job with its newest rows."""
        name = job.latest().name
        known, tape = self._tapes.get(name, (None, None))
        if tape is None or known is not job:
            tape = Tape()
            self._tapes[name] = (job, tape)
        tape.take(job)
        return tape

    def keep(self, names: Collection[str]) -> None:
        """Drop the tapes of all other jobs."""
        for name in [name for name in self._tapes if name not in names]:
            del self._tapes[name]
