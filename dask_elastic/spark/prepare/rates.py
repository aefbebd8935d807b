"""The rates of a recording by intervals of time, and the numbers of nodes for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.planning.intervals.node_trace import NodeTrace, nodes_needed
from dask_elastic.planning.placement.problem import Floats, Ints
from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.prepare.prepared import PreparationError
from dask_elastic.topology.duration import parse_duration
from dask_elastic.vocab.errors import TopologyError

MICROSECOND = np.timedelta64(1, "us")


@dataclass(frozen=True, eq=False)
class Rates:
    """The number of rows in each interval of time.

    Parameters
    ----------
    start : datetime64
        Start of the first interval, in UTC.
    interval : timedelta64
        Length of each interval.
    rows : array of int
        Number of rows in each interval, which may be 0.

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
        """The start of each interval."""
        return np.asarray(self.start + np.arange(len(self.rows)) * self.interval)

    @property
    def per_second(self) -> Floats:
        """The mean rate of each interval, in rows per second."""
        result: Floats = self.rows / (self.interval / np.timedelta64(1, "s"))
        return result

    def nodes(self, least: int = 8, most: int = 16, peak: float = 1.0) -> NodeTrace:
        """Scale the numbers of rows to numbers of nodes within a range.

        Parameters
        ----------
        least, most : int
            Nodes for the interval with the fewest rows, and for the one with the most rows.
        peak : float
            The quantile of the numbers of rows that is scaled to `most` nodes.

        Returns
        -------
        NodeTrace
            The number of nodes in each interval.

        Notes
        -----
        State migration, section 6.
        """
        return NodeTrace(self.start, self.interval, nodes_needed(self.rows, least, most, peak))

    def nodes_at(self, rows_per_second: float) -> NodeTrace:
        """Compute the number of nodes for each interval from the capacity of one node.

        Parameters
        ----------
        rows_per_second : float
            Capacity of one node, above 0.

        Returns
        -------
        NodeTrace
            The smallest number of nodes, at least 1, for the mean rate of each interval. Bursts within an interval are
            ignored.

        Raises
        ------
        PreparationError
            If the capacity is not above 0.
        """
        if not (np.isfinite(rows_per_second) and rows_per_second > 0):
            raise PreparationError(f"rows_per_second is {rows_per_second!r}: give the capacity of one node, above 0.")
        needed = np.ceil(self.per_second / rows_per_second)
        return NodeTrace(self.start, self.interval, np.maximum(needed, 1).astype(np.int64))


def rates(frame: DataFrame, interval: str | float | np.timedelta64, time: str = "event_time") -> Rates:
    """Count the rows of a recording by intervals of time, in Spark.

    Parameters
    ----------
    frame : DataFrame
        The recording, a batch.
    interval : str, float or timedelta64
        Length of an interval, such as "1h" or seconds. Intervals start at multiples of it, counted from 1970.
    time : str
        The timestamp column; timestamps without a zone count as UTC.

    Returns
    -------
    Rates
        The intervals from that of the earliest row to that of the latest row.

    Raises
    ------
    PreparationError
        If there are no rows, a timestamp is null, or the interval is shorter than a microsecond.

    Examples
    --------
    Rows per half hour, and the nodes that they need at 100 rows per second and node::

        trace = rates(flown, "30m", time="sched_dep").nodes_at(rows_per_second=100)
    """
    length = whole_microseconds(interval)
    check_timestamps(frame, time)
    with spark_errors("counting rows by time"):
        counted = frame.groupBy(interval_start(time, length)).count().toArrow()
    if not counted.num_rows:
        raise PreparationError(f"there are no rows, so there are no rates by column {time!r}: give a batch with rows.")
    starts = counted["interval"].to_numpy().astype("datetime64[us]")
    place = ((starts - starts.min()) / MICROSECOND).astype(np.int64) // length
    rows = np.zeros(place.max() + 1, dtype=np.int64)
    rows[place] = counted["count"].to_numpy()
    return Rates(starts.min(), length * MICROSECOND, rows)


def interval_start(time: str, microseconds: int) -> Column:
    """Return the start of a timestamp's interval, as the column "interval"."""
    return F.window(time, f"{microseconds} microseconds").start.alias("interval")


def whole_microseconds(interval: str | float | np.timedelta64) -> int:
    """Parse the length of an interval.

    Raises
    ------
    PreparationError
        If it is not a duration, or shorter than a microsecond.
    """
    try:
        length = int(interval / MICROSECOND) if isinstance(interval, np.timedelta64) else _microseconds(interval)
    except (OverflowError, TypeError, ValueError, TopologyError):
        length = 0
    if length < 1:
        raise PreparationError(f"interval is {interval!r}: give a length of at least a microsecond, such as '1h'.")
    return length


def _microseconds(interval: str | float) -> int:
    return round(parse_duration(interval, "interval") * 1_000_000)


def check_timestamps(frame: DataFrame, time: str) -> None:
    """Refuse a stream, and rows whose timestamp is null.

    Raises
    ------
    PreparationError
        If the frame is a stream, or a timestamp is null.
    """
    if frame.isStreaming:
        raise PreparationError("counting by intervals of time needs a batch, not a stream.")
    with spark_errors(f"checking column {time!r}"):
        missing = frame.where(F.col(time).isNull()).limit(1).count()
    if missing:
        raise PreparationError(f"column {time!r} has rows without a timestamp: drop them first, as `judge` does.")
