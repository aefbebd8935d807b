"""Cleans flights, and adds their event time in UTC and their route."""

from __future__ import annotations

from collections.abc import Collection
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.prepare.prepared import PreparationError, Prepared, judge, require

COLUMNS = {
    "sched_dep": "timestamp_ntz",
    **dict.fromkeys(("dep_delay", "arr_delay", "carrier", "flight", "tailnum", "origin", "dest")),
}
ORDER = ("event_time", "carrier", "flight", "origin")


def flights(frame: DataFrame, zone: str = "America/New_York", keep: Collection[str] = ()) -> Prepared:
    """Clean flights, and add their event time in UTC and their route.

    Parameters
    ----------
    frame : DataFrame
        Flights, as `read` returns them; ``sched_dep`` is in local time, without a zone.
    zone : str
        The time zone of ``sched_dep``.
    keep : collection of str
        Reasons for which rows are not dropped.

    Returns
    -------
    Prepared
        Adds ``event_time``, the scheduled departure in UTC, without a zone, and ``route``, such as "JFK-LAX". Sorted by
        ``event_time``. Reasons: "no scheduled departure", "no such local time", "cancelled", "no arrival delay", "no
        tail number".

    Raises
    ------
    PreparationError
        If the time zone is unknown, or `keep` names an unknown reason.
    SchemaMismatch
        If a column is missing, or ``sched_dep`` is not a timestamp without a zone.

    Notes
    -----
    When clocks go forward, local times of the skipped hour do not exist; such rows are dropped. When clocks go back,
    local times of the repeated hour are taken as the first occurrence.

    Examples
    --------
    Clean a recording, and count what was dropped::

        flown = flights(read(spark, "flights.parquet", "flights"))
        print(flown.counts())
    """
    require(frame, "flights", COLUMNS)
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise PreparationError(
            f"zone is {zone!r}, which is not a time zone: give one such as 'America/New_York'."
        ) from error
    utc, local = F.lit("UTC"), F.lit(zone)
    timed = frame.withColumn("event_time", F.convert_timezone(local, utc, F.col("sched_dep")))
    timed = timed.withColumn("route", F.concat_ws("-", "origin", "dest"))
    rules = {
        "no scheduled departure": F.col("sched_dep").isNull(),
        "no such local time": F.convert_timezone(utc, local, F.col("event_time")) != F.col("sched_dep"),
        "cancelled": F.col("dep_delay").isNull(),
        "no arrival delay": F.col("arr_delay").isNull(),
        "no tail number": F.col("tailnum").isNull(),
    }
    return judge(timed, rules, ORDER, keep)
