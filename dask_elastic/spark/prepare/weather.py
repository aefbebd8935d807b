"""Weather by the hour, and flights together with the weather at their departure."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.prepare.prepared import COPY, PreparationError, Prepared, judge, numbered_copies, require, then

COLUMNS = {"station": None, "ts": "timestamp_ntz"}
NO_WEATHER = "no weather of that hour"


def weather(frame: DataFrame, keep: Collection[str] = ()) -> Prepared:
    """Clean reports of the weather: one for each station and hour.

    Parameters
    ----------
    frame : DataFrame
        Reports, such as `read` returns them; ``ts`` is in UTC, without a zone.
    keep : collection of str
        Reasons for which no row shall be dropped.

    Returns
    -------
    Prepared
        With ``event_time``, the hour of the report, in place of ``ts``. Ordered by ``event_time`` and station. Reasons:
        "no station", "no time", "another report of that hour"; the first in the order of its values stays.

    Raises
    ------
    PreparationError
        If a reason is not known.
    SchemaMismatch
        If a column is missing, or ``ts`` is no moment without a zone.
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
    """Give each flight the weather at its origin in the hour of its scheduled departure.

    Parameters
    ----------
    flights : Prepared
        Flights, a batch or a stream.
    reports : Prepared
        Weather, a batch.
    keep : collection of str
        "no weather of that hour" to keep flights without weather; their columns of weather are null.

    Returns
    -------
    Prepared
        The flights, in their order, with the columns of the weather, and the reason "no weather of that hour".

    Raises
    ------
    PreparationError
        If the weather is a stream.
    """
    if reports.judged.isStreaming:
        raise PreparationError("the weather is a stream: read it as a batch, each flight needs all of it.")
    found = reports.rows.withColumnsRenamed({"event_time": "_hour", "station": "_station"})
    same = (F.col("origin") == F.col("_station")) & (hour_of(F.col("event_time")) == F.col("_hour"))
    joined = flights.judged.join(found, same, "left")
    after = judge(joined, {NO_WEATHER: F.col("_hour").isNull()}, flights.order, keep)
    judged = after.judged.drop("_hour", "_station")
    return then(flights, Prepared(judged, after.reasons, after.order))


def hour_of(moment: Column) -> Column:
    """Return the beginning of the hour of a moment without a zone, whatever the zone of the session."""
    parts = [F.year(moment), F.month(moment), F.dayofmonth(moment), F.hour(moment), F.lit(0), F.lit(0)]
    return F.make_timestamp_ntz(*parts)
