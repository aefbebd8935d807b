"""Event time of one instance of a source: what its rows say, and when that is to be said to others."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.vocab.errors import SourceError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

_LEAST, _MOST = -(2**63), 2**63 - 1
"""What a channel carries of a time; beyond it a watermark says less than it could, and nothing wrong."""

_DAY = 86_400 * 10**6
_UNITS = {"s": (10**6, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


class SourceClock:
    """Makes watermarks of the rows that an instance sends; called by one thread at a time.

    Before a batch is sent, `begin` is; behind it, `sent`. Both return what is to be said then, if anything.

    Parameters
    ----------
    origin : ExecutorId
        The instance.
    column : str
        Its column of event time: timestamps or dates. A row without a time is as it were of any time.
    slack : float
        How much older than the newest row one that comes later may be, seconds.
    interval : float
        Seconds between two watermarks, at least.
    idle_after : float or None
        Seconds without a row after which nobody is to wait for it; None is never.
    now : float
        The time on the caller's clock, seconds.

    Attributes
    ----------
    late : int
        Rows that came later than the slack allows: older than what had been said before them. They are sent all the
        same.

    Notes
    -----
    Enorm, section 6.2. The slack is subtracted here, once.

    Examples
    --------
    >>> clock = SourceClock(ExecutorId("readings", 0), "at", slack=10)
    >>> for seconds in ([100, 97], [95, 80], [105]):
    ...     rows = pa.record_batch({"at": pa.array(seconds, pa.timestamp("s"))})
    ...     said = clock.sent(rows, now=0.0)
    ...     print(said and said.time, clock.late)
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
        self._said: int | None = None
        self._said_at = -float("inf")
        self._sent_at = now
        self._idle = False

    @property
    def time(self) -> int | None:
        """What was said last, microseconds since the epoch."""
        return self._said

    def begin(self) -> Watermark | None:
        """Return what is to be said before the next batch: that the instance is not idle any more."""
        if not self._idle:
            return None
        self._idle = False
        return Watermark(self.origin, self._said)

    def sent(self, rows: pa.RecordBatch, now: float) -> Watermark | None:
        """Note rows that were sent, and return what is to be said behind them.

        Raises
        ------
        SourceError
            If they lack the column, or it has no times.
        """
        self._sent_at = now
        times = self._times(rows)
        found = pc.min_max(times)
        if found["max"].is_valid:
            unit = _unit(times.type)
            if self._said is not None and _microseconds(found["min"].value, unit) < self._said:
                self.late += _count_below(times, -(-self._said * unit[1] // unit[0]))
            newest = _microseconds(found["max"].value, unit)
            self._newest = newest if self._newest is None else max(newest, self._newest)
        return self._advanced(now) if now - self._said_at >= self.interval else None

    def quiet(self, now: float) -> Watermark | None:
        """Return what is to be said now that there is nothing to send for a while."""
        if self.idle_after is None or self._idle or now - self._sent_at < self.idle_after:
            return self._advanced(now) if now - self._said_at >= self.interval else None
        self._advanced(now)
        self._idle = True
        return Watermark(self.origin, self._said, idle=True)

    def end(self) -> Watermark | None:
        """Return what is to be said behind the last row: nothing older comes any more, whatever the slack."""
        self._slack = 0
        return self._advanced(self._said_at)

    def _advanced(self, now: float) -> Watermark | None:
        if self._newest is None:
            return None
        time = min(max(self._newest - self._slack, _LEAST), _MOST)
        if self._said is not None and time <= self._said:
            return None
        self._said, self._said_at = time, now
        return Watermark(self.origin, time, self._idle)

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
    """Return how many microseconds one is, as a fraction."""
    if pa.types.is_date(kind):
        return (_DAY, 1) if pa.types.is_date32(kind) else _UNITS["ms"]
    return _UNITS[kind.unit]


def _microseconds(value: int, unit: tuple[int, int]) -> int:
    return value * unit[0] // unit[1]


def _count_below(times: pa.Array, bound: int) -> int:
    kind = pa.int32() if pa.types.is_date32(times.type) else pa.int64()
    below = pc.less(times.view(kind), pa.scalar(bound, pa.int64()))
    return pc.sum(below).as_py() or 0
