"""How many rows a recording has in each interval of time, and how many nodes they need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dask.utils import parse_timedelta
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.planning.intervals.node_trace import NodeTrace, nodes_needed
from dask_elastic.planning.placement.problem import Floats, Ints
from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.prepare.prepared import PreparationError

MICROSECOND = np.timedelta64(1, "us")
EPOCH = np.datetime64(0, "us")


@dataclass(frozen=True, eq=False)
class Rates:
    """The rows of each interval of time.

    Parameters
    ----------
    start : datetime64
        When the first interval begins, in UTC.
    interval : timedelta64
        How long each one is.
    rows : array of int
        One count an interval; empty ones are 0.

    Examples
    --------
    >>> found = Rates(np.datetime64("2013-01-01T10"), np.timedelta64(1, "h"), np.array([3600, 0, 9000]))
    >>> found.per_second.tolist()
    [1.0, 0.0, 2.5]
    >>> found.nodes_at(rows_per_second=1.0).nodes.tolist()
    [1, 1, 3]
    >>> found.nodes(least=8, most=16).nodes.tolist()
    [11, 8, 16]
    """

    start: np.datetime64
    interval: np.timedelta64
    rows: Ints

    @property
    def times(self) -> NDArray[np.datetime64]:
        """When each interval begins."""
        return np.asarray(self.start + np.arange(len(self.rows)) * self.interval)

    @property
    def per_second(self) -> Floats:
        """The mean rate of each interval, in rows a second."""
        result: Floats = self.rows / (self.interval / np.timedelta64(1, "s"))
        return result

    def nodes(self, least: int = 8, most: int = 16, peak: float = 1.0) -> NodeTrace:
        """Return the nodes of each interval, its rows normalised into a range.

        Parameters
        ----------
        least, most : int
            Nodes for the interval with the fewest rows, and for the one with the most.
        peak : float
            The quantile of counts that needs `most` nodes already.

        Returns
        -------
        NodeTrace
            One count an interval.

        Notes
        -----
        State migration, section 6.
        """
        return NodeTrace(self.start, self.interval, nodes_needed(self.rows, least, most, peak))

    def nodes_at(self, rows_per_second: float) -> NodeTrace:
        """Return the nodes of each interval, from what one node can do.

        Parameters
        ----------
        rows_per_second : float
            What one node can do, more than 0.

        Returns
        -------
        NodeTrace
            As few as can take the mean rate of the interval, one at least. Bursts within an interval are not seen.

        Raises
        ------
        PreparationError
            If the rate is not above 0.
        """
        if not (np.isfinite(rows_per_second) and rows_per_second > 0):
            raise PreparationError(f"rows_per_second is {rows_per_second!r}: give what one node can do, more than 0.")
        needed = np.ceil(self.per_second / rows_per_second)
        return NodeTrace(self.start, self.interval, np.maximum(needed, 1).astype(np.int64))


def rates(frame: DataFrame, interval: str | float | np.timedelta64, time: str = "event_time") -> Rates:
    """Count the rows of a recording by intervals of time, within Spark.

    Parameters
    ----------
    frame : DataFrame
        The recording, a batch.
    interval : str, float or timedelta64
        How long an interval is, such as "1h" or seconds. Intervals begin at whole multiples of it, counted from 1970.
    time : str
        The column of moments; those without a zone count as UTC.

    Returns
    -------
    Rates
        From the interval of the earliest row to that of the latest.

    Raises
    ------
    PreparationError
        If there are no rows, a moment is missing, or the interval is less than a microsecond.
    """
    length = whole_microseconds(interval)
    check_moments(frame, time)
    with spark_errors("counting rows by time"):
        counted = frame.groupBy(interval_start(time, length)).count().toArrow()
    if not counted.num_rows:
        raise PreparationError(f"there are no rows, so column {time!r} has no rates: give a recording with rows.")
    starts = counted["interval"].to_numpy().astype("datetime64[us]")
    place = ((starts - starts.min()) / MICROSECOND).astype(np.int64) // length
    rows = np.zeros(place.max() + 1, dtype=np.int64)
    rows[place] = counted["count"].to_numpy()
    return Rates(starts.min(), length * MICROSECOND, rows)


def interval_start(time: str, microseconds: int) -> Column:
    """Return when the interval of a moment begins, as the column "interval"."""
    return F.window(time, f"{microseconds} microseconds").start.alias("interval")


def whole_microseconds(interval: str | float | np.timedelta64) -> int:
    """Return the length of an interval, which must be one microsecond at least."""
    try:
        length = int(interval / MICROSECOND) if isinstance(interval, np.timedelta64) else _microseconds(interval)
    except (KeyError, TypeError, ValueError):
        length = 0
    if length < 1:
        raise PreparationError(f"interval is {interval!r}: give one of a microsecond or more, such as '1h'.")
    return length


def _microseconds(interval: str | float) -> int:
    seconds: float = parse_timedelta(interval)
    return round(seconds * 1_000_000)


def check_moments(frame: DataFrame, time: str) -> None:
    """Refuse a stream, and rows without a moment, which belong to no interval."""
    if frame.isStreaming:
        raise PreparationError("a stream has no rates before it ends: give a batch.")
    with spark_errors(f"looking at column {time!r}"):
        missing = frame.where(F.col(time).isNull()).limit(1).count()
    if missing:
        raise PreparationError(f"column {time!r} has rows without a moment: drop them first, `judge` counts them.")
