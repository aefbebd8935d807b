"""Watermarks of one source instance: from the event times of its rows, at intervals."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import SourceError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

_LEAST, _MOST = -(2**63), 2**63 - 1
"""The times that a channel can carry; a watermark is cut to this range, which keeps it true."""

_DAY = 86_400 * 10**6
_UNITS = {"s": (10**6, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


class SourceClock:
    """Makes the watermarks of a source instance from the rows that it sends; called by one thread at a time.

    The instance calls `begin` before it sends a batch, and `sent` after it. Both return a watermark to send then, or
    None.

    Parameters
    ----------
    origin : ExecutorId
        The source instance.
    column : str
        Its column of event time: timestamps or dates. Rows where it is null do not count.
    slack : float
        Seconds by which a row may be older than the newest row before it.
    interval : float
        Least seconds between two watermarks.
    idle_after : float or None
        Seconds without a row after which the instance is idle; None is never.
    now : float
        The time on the caller's clock, seconds.

    Attributes
    ----------
    late : int
        Late rows: older than the watermark before them. They are sent nevertheless.

    Notes
    -----
    Enorm, section 6.2. The slack is subtracted here, once.

    Examples
    --------
    >>> clock = SourceClock(ExecutorId("readings", 0), "at", slack=10)
    >>> for seconds in ([100, 97], [95, 80], [105]):
    ...     rows = pa.record_batch({"at": pa.array(seconds, pa.timestamp("s"))})
    ...     watermark = clock.sent(rows, now=0.0)
    ...     print(watermark and watermark.time, clock.late)
    90000000 0
    None 1
    95000000 1
    """

    def __init__(
        self,
        origin: ExecutorId,
        column: str,
        slack: float = 0.0,
        interval: float = 0.0,
        idle_after: float | None = None,
        now: float = 0.0,
    ):
        self.origin = origin
        self.column = column
        self.interval = interval
        self.idle_after = idle_after
        self.late = 0
        self._slack = round(slack * 1e6)
        self._newest: int | None = None
        self._last: int | None = None
        self._sent_watermark_at = -float("inf")
        self._sent_at = now
        self._idle = False

    @property
    def newest(self) -> int | None:
        """The newest event time of the rows that were sent, microseconds since the epoch; also where to begin."""
        return self._newest

    @newest.setter
    def newest(self, time: int | None) -> None:
        self._newest = time

    @property
    def time(self) -> int | None:
        """Time of the last watermark, microseconds since the epoch."""
        return self._last

    def begin(self) -> Watermark | None:
        """Return the watermark to send before the next batch: one that ends the idle state, if the instance is idle."""
        if not self._idle:
            return None
        self._idle = False
        return Watermark(self.origin, self._last)

    def sent(self, rows: pa.RecordBatch, now: float) -> Watermark | None:
        """Count rows that were sent, and return the watermark to send behind them.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            The rows.
        now : float
            The time in seconds.

        Returns
        -------
        Watermark or None
            None before the interval has passed, or without progress.

        Raises
        ------
        SourceError
            If they lack the column of event time, or it is neither timestamps nor dates.
        """
        self._sent_at = now
        times = self._times(rows)
        found = pc.min_max(times)
        if found["max"].is_valid:
            unit = _unit(times.type)
            if self._last is not None and _microseconds(found["min"].value, unit) < self._last:
                self.late += _count_below(times, -(-self._last * unit[1] // unit[0]))
            newest = _microseconds(found["max"].value, unit)
            self._newest = newest if self._newest is None else max(newest, self._newest)
        return self._advanced(now) if now - self._sent_watermark_at >= self.interval else None

    def quiet(self, now: float) -> Watermark | None:
        """Return the watermark to send while the source has no rows."""
        if self.idle_after is None or self._idle or now - self._sent_at < self.idle_after:
            return self._advanced(now) if now - self._sent_watermark_at >= self.interval else None
        self._advanced(now)
        self._idle = True
        return Watermark(self.origin, self._last, idle=True)

    def due(self) -> float:
        """Return the time at which `quiet` may have a watermark next; infinity if not before more rows are sent."""
        of_progress = math.inf if self._progress() is None else self._sent_watermark_at + self.interval
        of_idleness = math.inf if self.idle_after is None or self._idle else self._sent_at + self.idle_after
        return min(of_progress, of_idleness)

    def end(self) -> Watermark | None:
        """Return the watermark to send behind the last row, without slack: no older row follows."""
        self._slack = 0
        return self._advanced(self._sent_watermark_at)

    def _advanced(self, now: float) -> Watermark | None:
        time = self._progress()
        if time is None:
            return None
        self._last, self._sent_watermark_at = time, now
        return Watermark(self.origin, time, self._idle)

    def _progress(self) -> int | None:
        """Return the time of the next watermark; None if it is not later than that of the last one."""
        if self._newest is None:
            return None
        time = min(max(self._newest - self._slack, _LEAST), _MOST)
        return time if self._last is None or time > self._last else None

    def _times(self, rows: pa.RecordBatch) -> pa.Array:
        place = rows.schema.get_field_index(self.column)
        if place < 0:
            raise SourceError(
                f"source {self.origin.component!r}: event_time names {self.column!r}, but its rows have the columns "
                f"{', '.join(map(repr, rows.schema.names))}"
            )
        times = rows.column(place)
        if not (pa.types.is_timestamp(times.type) or pa.types.is_date(times.type)):
            raise SourceError(
                f"source {self.origin.component!r}: event_time {self.column!r} is {times.type}, not a timestamp or date"
            )
        return times


def _unit(kind: pa.DataType) -> tuple[int, int]:
    """Return the microseconds of one unit, as a fraction."""
    if pa.types.is_date(kind):
        return (_DAY, 1) if pa.types.is_date32(kind) else _UNITS["ms"]
    return _UNITS[kind.unit]


def _microseconds(value: int, unit: tuple[int, int]) -> int:
    return value * unit[0] // unit[1]


def _count_below(times: pa.Array, bound: int) -> int:
    kind = pa.int32() if pa.types.is_date32(times.type) else pa.int64()
    below = pc.less(times.view(kind), array_of(np.array([bound]))[0])
    return pc.sum(below).as_py() or 0
