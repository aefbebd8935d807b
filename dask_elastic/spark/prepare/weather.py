"""Cleans hourly weather reports, and joins flights with the weather at their departure."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.prepare.prepared import COPY, PreparationError, Prepared, judge, numbered_copies, require, then

COLUMNS = {"station": None, "ts": "timestamp_ntz"}
NO_WEATHER = "no weather of that hour"


def weather(frame: DataFrame, keep: Collection[str] = ()) -> Prepared:
    """Clean weather reports, so that each station has at most one per hour.

    Parameters
    ----------
    frame : DataFrame
        Reports, as `read` returns them; ``ts`` is in UTC, without a zone.
    keep : collection of str
        Reasons for which rows are not dropped.

    Returns
    -------
    Prepared
        ``event_time``, the hour of the report, replaces ``ts``. Sorted by ``event_time`` and station. Reasons: "no
        station", "no time", "another report of that hour" (the first report in the order of its values is kept).

    Raises
    ------
    PreparationError
        If `keep` names an unknown reason.
    SchemaMismatch
        If a column is missing, or ``ts`` is not a timestamp without a zone.

    Examples
    --------
    Clean a recording, and count what was dropped::

        reports = weather(read(spark, "weather.parquet", "weather"))
        print(reports.counts())
    """
    require(frame, "weather", COLUMNS)
    hourly = frame.withColumn("event_time", hour_of(F.col("ts"))).drop("ts")
    rules = {
        "no station": F.col("station").isNull(),
        "no time": F.col("event_time").isNull(),
        "another report of that hour": F.col(COPY) > 1,
    }
    return judge(numbered_copies(hourly, ["station", "event_time"]), rules, ("event_time", "station"), keep)


def with_weather(flights: Prepared, reports: Prepared, keep: Collection[str] = ()) -> Prepared:
    """Join each flight with the weather at its origin in the hour of its scheduled departure.

    Parameters
    ----------
    flights : Prepared
        Flights, a batch or a stream.
    reports : Prepared
        Weather, a batch.
    keep : collection of str
        "no weather of that hour" to keep flights without weather; their weather columns are null.

    Returns
    -------
    Prepared
        The flights, sorted as before, with the weather columns and the additional reason "no weather of that hour".

    Raises
    ------
    PreparationError
        If the weather is a stream, or `keep` names an unknown reason.

    Examples
    --------
    Join flights with the reports of their hour::

        joined = with_weather(flights(flown), weather(reports))
        joined.rows.write.parquet("joined")
    """
    if reports.judged.isStreaming:
        raise PreparationError("the weather is a stream: read it as a batch, as each flight needs all of it.")
    found = reports.rows.withColumnsRenamed({"event_time": "_hour", "station": "_station"})
    same = (F.col("origin") == F.col("_station")) & (hour_of(F.col("event_time")) == F.col("_hour"))
    joined = flights.judged.join(found, same, "left")
    after = judge(joined, {NO_WEATHER: F.col("_hour").isNull()}, flights.order, keep)
    judged = after.judged.drop("_hour", "_station")
    return then(flights, Prepared(judged, after.reasons, after.order))


def hour_of(moment: Column) -> Column:
    """Return the start of the hour of a timestamp without a zone, independent of the session's time zone."""
    parts = [F.year(moment), F.month(moment), F.dayofmonth(moment), F.hour(moment), F.lit(0), F.lit(0)]
    return F.make_timestamp_ntz(*parts)
