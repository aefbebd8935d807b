"""Cleans the orders of an exchange and of a shop."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dask_elastic.spark.prepare.prepared import COPY, Prepared, judge, numbered_copies, require

EXCHANGE_COLUMNS = {"ts": "timestamp_ntz", **dict.fromkeys(("order_id", "price", "volume_e8", "action", "side"))}
RETAIL_COLUMNS = {
    "ts": "timestamp_ntz",
    **dict.fromkeys(("order_id", "stock_id", "side", "quantity", "unit_price", "customer_id")),
}


def exchange_orders(frame: DataFrame, keep: Collection[str] = ()) -> Prepared:
    """Clean the events of an exchange's limit orders.

    Parameters
    ----------
    frame : DataFrame
        Orders, as `read` returns them; ``ts`` is in UTC, without a zone.
    keep : collection of str
        Reasons for which rows are not dropped.

    Returns
    -------
    Prepared
        ``event_time`` replaces ``ts``; sorted by it. Reasons: "no time", "no order id", "no price above 0",
        "negative volume", "exact copy".

    Raises
    ------
    PreparationError
        If `keep` names an unknown reason.
    SchemaMismatch
        If a column is missing, or ``ts`` is not a timestamp without a zone.

    Examples
    --------
    Clean a recording, and count what was dropped::

        orders = exchange_orders(read(spark, "exchange_orders.parquet", "exchange_orders"))
        print(orders.counts())
    """
    require(frame, "exchange orders", EXCHANGE_COLUMNS)
    rules = {
        "no time": F.col("event_time").isNull(),
        "no order id": F.col("order_id").isNull(),
        "no price above 0": F.col("price").isNull() | (F.col("price") <= 0),
        "negative volume": F.col("volume_e8") < 0,
        "exact copy": F.col(COPY) > 1,
    }
    numbered = numbered_copies(frame.withColumnRenamed("ts", "event_time"))
    return judge(numbered, rules, ("event_time", "order_id", "action"), keep)


def retail_orders(frame: DataFrame, keep: Collection[str] = ()) -> Prepared:
    """Clean the lines of a shop's orders.

    Parameters
    ----------
    frame : DataFrame
        Orders, as `read` returns them; a line with ``side`` "return" is a return of goods.
    keep : collection of str
        Reasons for which rows are not dropped.

    Returns
    -------
    Prepared
        ``event_time`` replaces ``ts``; sorted by it. Reasons: "no time", "no stock id", "no customer", "no
        price above 0", "quantity against its side" (a purchase of less than one, a return of more than none), "exact
        copy".

    Raises
    ------
    PreparationError
        If `keep` names an unknown reason.
    SchemaMismatch
        If a column is missing, or ``ts`` is not a timestamp without a zone.

    Examples
    --------
    Clean a recording, and count what was dropped::

        orders = retail_orders(read(spark, "retail_orders.parquet", "retail_orders"))
        print(orders.counts())
    """
    require(frame, "retail orders", RETAIL_COLUMNS)
    bought = F.col("side") != "return"
    rules = {
        "no time": F.col("event_time").isNull(),
        "no stock id": F.col("stock_id").isNull(),
        "no customer": F.col("customer_id").isNull(),
        "no price above 0": F.col("unit_price").isNull() | (F.col("unit_price") <= 0),
        "quantity against its side": (bought & (F.col("quantity") < 1)) | (~bought & (F.col("quantity") > -1)),
        "exact copy": F.col(COPY) > 1,
    }
    numbered = numbered_copies(frame.withColumnRenamed("ts", "event_time"))
    return judge(numbered, rules, ("event_time", "order_id", "stock_id", "quantity"), keep)
