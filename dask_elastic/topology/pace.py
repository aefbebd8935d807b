"""Pacing of sources with a rate: small slices of rows, each with the time at which it is due."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pyarrow as pa

from dask_elastic.topology.ticks import LONGEST_TICK, TICK_SECONDS, Ticks, next_tick
from dask_elastic.vocab.errors import TopologyError

SLICE_SECONDS = 0.005
"""The time span of the longest slice, in seconds: short compared with latency targets, long compared with its cost."""

_TOLERANCE = 1e-3


def rows_within(rate: float | None, seconds: float, most: int) -> int:
    """Return how many rows of a paced stream fall within a time span.

    Parameters
    ----------
    rate : float or None
        Rows per second; None for no limit.
    seconds : float
        The length of the span, in seconds.
    most : int
        The maximum returned.

    Returns
    -------
    int
        From 1 to `most`; at least 1, so that slow streams advance row by row.

    Examples
    --------
    >>> rows_within(20_000, 0.005, most=65_536), rows_within(3, 0.005, most=65_536), rows_within(None, 0.005, most=10)
    (100, 1, 10)
    """
    if rate is None:
        return most
    return max(1, int(min(rate * seconds, most)))


def cut(rows: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Slice a batch into consecutive parts without copying.

    Parameters
    ----------
    rows : RecordBatch
        The rows to slice; an empty batch yields nothing.
    most : int
        The most rows of one slice.

    Yields
    ------
    RecordBatch
        The slices, in order; the batch itself if it is small enough.

    Examples
    --------
    >>> [piece.num_rows for piece in cut(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), 2)]
    [2, 1]
    """
    if 0 < rows.num_rows <= most:
        yield rows
        return
    for start in range(0, rows.num_rows, most):
        yield rows.slice(start, most)


class Pace:
    """Slices the batches of one source instance so that the slices are due at a steady rate.

    Parameters
    ----------
    rate : float or None
        Rows per second of this instance; None for as fast as possible.
    started : float
        When the first row is due, in seconds on the caller's clock.
    slice_seconds : float, default 0.005
        The time span of one slice, in seconds.
    max_rows : int, default 65536
        The most rows of one slice, at any rate.
    ticks : Ticks, optional
        The ticks of all sources of this process; its own by default.
    longest_tick : float, default 0.02
        The most time between two ticks of this source, in seconds, however busy the process is.

    Raises
    ------
    TopologyError
        When the rate is not a positive number.

    Notes
    -----
    A slice is due when its first row is: at `started + rows before it / rate`. Due times are computed from the row
    count rather than from the previous slice, so rounding errors do not accumulate, and a source that lags emits
    without pause until it has caught up. Latency is measured from the due time rather than from the emission:
    otherwise a job that cannot keep up would seem fast.

    Examples
    --------
    >>> pace = Pace(rate=200, started=10.0, slice_seconds=0.01)
    >>> rows = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
    >>> [(piece.num_rows, due) for piece, due in pace.slice(rows)]
    [(2, 10.0), (1, 10.01)]
    >>> [(piece.num_rows, due) for piece, due in pace.slice(rows)]
    [(2, 10.015), (1, 10.025)]
    """

    def __init__(
        self,
        rate: float | None,
        started: float,
        *,
        slice_seconds: float = SLICE_SECONDS,
        max_rows: int = 65_536,
        ticks: Ticks | None = None,
        longest_tick: float = LONGEST_TICK,
    ):
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise TopologyError(f"rate is {rate}; give a positive number of rows per second, or None for no limit.")
        self.rate = rate
        self.started = started
        self.rows = 0
        self._slice_rows = rows_within(rate, slice_seconds, max_rows)
        self._max_rows = max_rows
        self._shared = ticks or Ticks()
        self._longest = longest_tick
        # The last tick, its time to the next one, and until when rows are due that leave at it.
        self._tick, self._span, self._horizon = 0.0, self._shared.within(longest_tick)[0], -math.inf

    @property
    def due(self) -> float | None:
        """When the next row is due, in seconds on the caller's clock; None without a rate."""
        return None if self.rate is None else self.started + self.rows / self.rate

    @property
    def is_stretched(self) -> bool:
        """Whether its ticks are at the same times as those of other sources; see `next_tick`."""
        return self._shared.within(self._longest)[0] > TICK_SECONDS

    def note_arrival(self, requested: float, now: float) -> None:
        """Delay the due times after a read that had to wait for data, so that this wait does not count as lag.

        Parameters
        ----------
        requested, now : float
            When the read began and when it returned, in seconds on the caller's clock. The source keeps the lag that it
            had at `requested`.

        Examples
        --------
        >>> pace = Pace(rate=200, started=10.0)
        >>> pace.note_arrival(requested=9.0, now=13.0)
        >>> pace.due
        13.0
        >>> pace.note_arrival(requested=14.0, now=14.5)
        >>> pace.due
        13.5
        """
        if self.due is not None:
            self.started += max(0.0, now - max(requested, self.due))

    def slice(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, float | None]]:
        """Slice the next batch of the stream.

        Parameters
        ----------
        rows : RecordBatch
            The batch. If the caller abandons the iterator, rows that were not yielded do not count as emitted.

        Yields
        ------
        tuple of RecordBatch and float or None
            A slice and its due time; None for immediately.
        """
        for piece in cut(rows, self._slice_rows):
            due = self.due
            self.rows += piece.num_rows
            yield piece, due

    def ticks(
        self, rows: pa.RecordBatch, clock: Callable[[], float], wait: Callable[[float], bool]
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Slice the next batch of the stream, waiting for ticks: at each, the rows leave that are due until the next.

        Parameters
        ----------
        rows : RecordBatch
            The batch.
        clock : callable
            Returns the time in seconds.
        wait : callable
            Waits for so many seconds; returns True to end the iteration.

        Yields
        ------
        tuple of RecordBatch and float
            A slice, and when it was due: with its first row, or with the tick. Slices of several batches may leave at
            one tick.

        Notes
        -----
        Ticks are a millisecond apart at least, and up to `longest_tick` when the process is busy; see `Ticks`. Then
        they are up to a tenth of that before their first row is due. A tick is not late because the one before it was.
        A source that lags sends what is due without waiting. If the clock is set back, due times go back with it.

        Examples
        --------
        >>> pace = Pace(rate=4_000, started=10.0)
        >>> times = iter([10.0, 10.0, 10.001])
        >>> rows = pa.RecordBatch.from_pydict({"a": [1, 2, 3, 4, 5]})
        >>> [(piece.num_rows, due) for piece, due in pace.ticks(rows, lambda: next(times), lambda seconds: False)]
        [(4, 10.0), (1, 10.001)]
        """
        rate, start = self.rate, 0
        assert rate is not None, "a stream without a rate is always due"
        while start < rows.num_rows:
            due = self.started + self.rows / rate
            ready = self._ready(rate)
            if ready <= 0:
                interval, lead = self._shared.within(self._longest)
                tick, now = next_tick(due - lead, self._tick, interval), clock()
                usual = 1 / rate + interval + self._span
                if self._horizon != -math.inf and tick - now > 2 * usual:
                    self._set_back(tick - now - usual)
                    continue
                if tick > now:
                    if wait(tick - now):
                        return
                    now = max(clock(), tick)
                self._span = interval + lead
                self._horizon = max(tick + self._span, now)
                # After a tick that came late, the next one is as soon as rows are due.
                self._tick = max(tick, now - interval)
                ready = max(1, self._ready(rate))
            most = max(self._slice_rows, rows_within(rate, self._span, self._max_rows))
            most = min(ready, most)
            piece = rows if not start and rows.num_rows <= most else rows.slice(start, most)
            start += piece.num_rows
            self.rows += piece.num_rows
            yield piece, min(due, self._horizon - self._span)

    def _set_back(self, seconds: float) -> None:
        """Take due times back with a clock that was set back: the source would wait for as long otherwise."""
        self.started -= seconds
        self._tick -= seconds
        self._horizon -= seconds

    def _ready(self, rate: float) -> int:
        """Return how many rows are due before the horizon of the last tick."""
        if self._horizon == -math.inf:
            return 0
        return math.ceil((self._horizon - self.started) * rate - _TOLERANCE) - self.rows

    @property
    def is_complete(self) -> bool:
        """Whether all rows of the last tick have been yielded by `ticks`.

        Examples
        --------
        >>> pace = Pace(rate=2_000, started=10.0)
        >>> row = pa.RecordBatch.from_pydict({"a": [1]})
        >>> [pace.is_complete for _ in range(2) for _ in pace.ticks(row, lambda: 10.0, lambda seconds: False)]
        [False, True]
        """
        return self.rate is None or self._ready(self.rate) <= 0

    def is_small(self, rows: pa.RecordBatch) -> bool:
        """Return whether more rows than these leave at a tick, so that it pays to join them with others.

        Parameters
        ----------
        rows : RecordBatch
            A slice.

        Examples
        --------
        >>> pace = Pace(rate=4_000, started=10.0)
        >>> rows = pa.RecordBatch.from_pydict({"a": [1, 2]})
        >>> pace.is_small(rows.slice(0, 1)), pace.is_small(rows)
        (True, False)
        """
        return self.rate is not None and rows.num_rows < self.rate * self._span / 2
