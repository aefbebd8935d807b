"""Counts the rows of each key by intervals of time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.prepare.rates import check_timestamps, interval_start, whole_microseconds


def key_histograms(
    frame: DataFrame, key: str, interval: str | float | np.timedelta64, time: str = "event_time"
) -> pa.Table:
    """Count the rows of each key by intervals of time, in Spark.

    Parameters
    ----------
    frame : DataFrame
        The rows, a batch.
    key : str
        The key column; null counts as a key.
    interval : str, float or timedelta64
        Length of an interval, such as "1h" or seconds. Intervals start at multiples of it, counted from 1970.
    time : str
        The timestamp column; timestamps without a zone count as UTC.

    Returns
    -------
    pyarrow.Table
        ``interval`` (its start), ``key`` and ``rows``; sorted by interval, then from the most frequent key. Keys that
        do not occur in an interval have no row.

    Raises
    ------
    PreparationError
        If a timestamp is null, or the interval is shorter than a microsecond.

    Examples
    --------
    Rows per carrier in each hour::

        table = key_histograms(flown, "carrier", "1h", time="sched_dep")
    """
    length = whole_microseconds(interval)
    check_timestamps(frame, time)
    with spark_errors("counting keys by time"):
        counted = frame.groupBy(interval_start(time, length), F.col(key).alias("key")).count()
        ordered = counted.orderBy("interval", F.desc("count"), "key").toArrow()
    return ordered.rename_columns(["interval", "key", "rows"])
