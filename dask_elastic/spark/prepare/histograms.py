"""How often each key comes in each interval of time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.prepare.rates import check_moments, interval_start, whole_microseconds


def key_histograms(
    frame: DataFrame, key: str, interval: str | float | np.timedelta64, time: str = "event_time"
) -> pa.Table:
    """Count the rows of each key by intervals of time, within Spark.

    Parameters
    ----------
    frame : DataFrame
        The recording, a batch.
    key : str
        The column of keys; null is a key of its own.
    interval : str, float or timedelta64
        How long an interval is, such as "1h" or seconds. Intervals begin at whole multiples of it, counted from 1970.
    time : str
        The column of moments; those without a zone count as UTC.

    Returns
    -------
    pyarrow.Table
        ``interval`` (its beginning), ``key`` and ``rows``; by interval, the most frequent key first. Keys that do not
        come in an interval have no row.

    Raises
    ------
    PreparationError
        If a moment is missing, or the interval is less than a microsecond.
    """
    length = whole_microseconds(interval)
    check_moments(frame, time)
    with spark_errors("counting keys by time"):
        counted = frame.groupBy(interval_start(time, length), F.col(key).alias("key")).count()
        ordered = counted.orderBy("interval", F.desc("count"), "key").toArrow()
    return ordered.rename_columns(["interval", "key", "rows"])
