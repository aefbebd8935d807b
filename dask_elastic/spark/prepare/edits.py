"""Edits of an encyclopedia: in time order, with a page and sizes that add up."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.prepare.prepared import COPY, Prepared, judge, numbered_copies, require

COLUMNS = {"ts": "timestamp_ntz", **dict.fromkeys(("channel", "page", "user_id", "delta", "added", "deleted"))}
ORDER = ("event_time", "channel", "page", "user_id")


def edits(frame: DataFrame, keep: Collection[str] = ()) -> Prepared:
    """Clean edits.

    Parameters
    ----------
    frame : DataFrame
        Edits, such as `read` returns them; ``ts`` is in UTC, without a zone.
    keep : collection of str
        Reasons for which no row shall be dropped.

    Returns
    -------
    Prepared
        With ``event_time`` in place of ``ts``, ordered by it. Reasons: "no time", "no page", "no user", "sizes that do
        not add up", "exact copy".

    Raises
    ------
    PreparationError
        If a reason is not known.
    SchemaMismatch
        If a column is missing, or ``ts`` is no moment without a zone.
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
