"""Cleans short texts, and splits them into words."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.prepare.prepared import COPY, Prepared, judge, numbered_copies, require

COLUMNS = {"arrival_ts": "timestamp_ntz", "event_ts": "timestamp_ntz", "author_id": None, "text": None}
# White space of every script, as in Python's str.split.
SPACE = r"(?U:\s)"
ORDER = ("arrival_ts", "event_time", "author_id", "text")


def texts(frame: DataFrame, keep: Collection[str] = ()) -> Prepared:
    """Clean texts, and split them into words.

    Parameters
    ----------
    frame : DataFrame
        Texts, as `read` returns them; both timestamps are in UTC, without a zone.
    keep : collection of str
        Reasons for which rows are not dropped.

    Returns
    -------
    Prepared
        ``event_time``, when the text was written, replaces ``event_ts``; ``words`` is the list of its words in lower
        case, split at white space. Sorted by arrival, so that event times are out of order. Reasons: "no time", "no
        text", "written after it arrived", "exact copy".

    Raises
    ------
    PreparationError
        If `keep` names an unknown reason.
    SchemaMismatch
        If a column is missing, or a timestamp has a zone.

    Examples
    --------
    Clean a recording, and count what was dropped::

        written = texts(read(spark, "texts.parquet", "texts"))
        print(written.counts())
    """
    require(frame, "texts", COLUMNS)
    bare = F.regexp_replace(F.lower(F.col("text")), rf"^{SPACE}+|{SPACE}+$", "")
    rules = {
        "no time": F.col("event_time").isNull() | F.col("arrival_ts").isNull(),
        "no text": F.col("text").isNull() | (bare == ""),
        "written after it arrived": F.col("event_time") > F.col("arrival_ts"),
        "exact copy": F.col(COPY) > 1,
    }
    numbered = numbered_copies(frame.withColumnRenamed("event_ts", "event_time"))
    return judge(numbered.withColumn("words", F.split(bare, f"{SPACE}+")), rules, ORDER, keep)
