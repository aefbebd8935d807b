"""Short texts, in the order of their arrival, with their words."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.prepare.prepared import COPY, Prepared, judge, numbered_copies, require

COLUMNS = {"arrival_ts": "timestamp_ntz", "event_ts": "timestamp_ntz", "author_id": None, "text": None}
# White space of every script, as Python's str.split knows it.
SPACE = r"(?U:\s)"
ORDER = ("arrival_ts", "event_time", "author_id", "text")


def texts(frame: DataFrame, keep: Collection[str] = ()) -> Prepared:
    """Clean texts and cut them into words.

    Parameters
    ----------
    frame : DataFrame
        Texts, such as `read` returns them; both moments are in UTC, without a zone.
    keep : collection of str
        Reasons for which no row shall be dropped.

    Returns
    -------
    Prepared
        With ``event_time``, when it was written, in place of ``event_ts``, and ``words``, a list: what stands between
        white space, in lower case. Ordered by arrival, so that a text written long before is late. Reasons: "no time",
        "no text", "written after it arrived", "exact copy".

    Raises
    ------
    PreparationError
        If a reason is not known.
    SchemaMismatch
        If a column is missing, or a moment has a zone.
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
