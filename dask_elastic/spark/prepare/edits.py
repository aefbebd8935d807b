"""Cleans edits of an encyclopedia."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.prepare.prepared import COPY, Prepared, judge, numbered_copies, require

COLUMNS = {"ts": "timestamp_ntz", **dict.fromkeys(("channel", "page", "user_id", "delta", "added", "deleted"))}
ORDER = ("event_time", "channel", "page", "user_id")


def edits(frame: DataFrame, keep: Collection[str] = ()) -> Prepared:
    """Clean edits, and sort them by event time.

    Parameters
    ----------
    frame : DataFrame
        Edits, as `read` returns them; ``ts`` is in UTC, without a zone.
    keep : collection of str
        Reasons for which rows are not dropped.

    Returns
    -------
    Prepared
        ``event_time`` replaces ``ts``; sorted by it. Reasons: "no time", "no page", "no user", "sizes that do
        not add up", "exact copy".

    Raises
    ------
    PreparationError
        If `keep` names an unknown reason.
    SchemaMismatch
        If a column is missing, or ``ts`` is not a timestamp without a zone.

    Examples
    --------
    Clean a recording, and count what was dropped::

        edited = edits(read(spark, "edits.parquet", "edits"))
        print(edited.counts())
    """
    require(frame, "edits", COLUMNS)
    rules = {
        "no time": F.col("event_time").isNull(),
        "no page": F.col("channel").isNull() | F.col("page").isNull(),
        "no user": F.col("user_id").isNull(),
        "sizes that do not add up": F.col("delta") != F.col("added") - F.col("deleted"),
        "exact copy": F.col(COPY) > 1,
    }
    return judge(numbered_copies(frame.withColumnRenamed("ts", "event_time")), rules, ORDER, keep)
