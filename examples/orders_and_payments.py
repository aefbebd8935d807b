"""Joins orders with the prices of their time and with payments, and finds orders that are not paid in time."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.distributed import Client

import dask_elastic as de

ITEMS = ["lamp", "desk", "sofa", "chair"]
MINUTE = 60_000
"""In milliseconds."""


def make_streams(orders: int) -> dict[str, pa.Table]:
    """Return orders, payments for most of them, and prices that change, each in the order of time."""
    random = np.random.default_rng(3)
    ordered = np.sort(random.integers(0, 24 * 60 * MINUTE, orders))
    paid = random.random(orders) < 0.9
    wait = random.exponential(20 * MINUTE, orders).astype(np.int64)
    by_time = np.argsort((ordered + wait)[paid])
    changed = np.sort(random.integers(0, 24 * 60 * MINUTE, 200))
    return {
        "orders": pa.table(
            {"order": np.arange(orders), "item": random.choice(ITEMS, orders), "at": _times(ordered)},
        ),
        "payments": pa.table(
            {"paid_for": np.flatnonzero(paid)[by_time], "at": _times((ordered + wait)[paid][by_time])},
        ),
        "prices": pa.table(
            {
                "item": [*ITEMS, *random.choice(ITEMS, 200)],
                "price": np.round(random.gamma(5.0, 20.0, 204), 2),
                "at": _times(np.concatenate([np.zeros(4, np.int64), changed])),
            }
        ),
    }


def _times(milliseconds: np.ndarray) -> pa.Array:
    return pa.array(milliseconds, pa.timestamp("ms"))


def build(streams: dict[str, pa.Table]) -> de.Topology:
    topology = de.Topology("orders-and-payments")
    orders, payments, prices = (
        topology.source(name, de.sources.Arrow(table, event_time="at", batch_rows=500))
        for name, table in streams.items()
    )
    priced = orders.key_by("item").join_asof(prices.key_by("item"), name="priced", suffixes=("", "_of_price"))
    settled = priced.key_by("order").join(
        payments.key_by("paid_for"),
        within=("0s", "1h"),
        how="left",
        time="at",
        suffixes=("", "_of_payment"),
        name="settled",
    )
    settled.sink(de.sinks.Collect(), name="out")
    return topology


def expected(streams: dict[str, pa.Table]) -> pd.DataFrame:
    orders, payments, prices = (table.to_pandas() for table in streams.values())
    priced = pd.merge_asof(orders, prices, on="at", by="item")
    pairs = priced.merge(payments, left_on="order", right_on="paid_for", how="left", suffixes=("", "_of_payment"))
    in_time = (pairs["at_of_payment"] - pairs["at"]) <= pd.Timedelta("1h")
    pairs.loc[~in_time, "at_of_payment"] = pd.NaT
    return pairs[["order", "item", "price", "at_of_payment"]].sort_values("order", ignore_index=True)


def main() -> int:
    streams = make_streams(10_000)
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        job = de.submit(build(streams), client)
        job.wait(timeout=60)
        found = job.collect("out").to_pandas().sort_values("order", ignore_index=True)
    wanted = expected(streams)
    right = found[wanted.columns].equals(wanted.astype(found[wanted.columns].dtypes))
    unpaid = found[found["at_of_payment"].isna()]
    print(
        f"{len(unpaid)} of {len(found)} orders were not paid within an hour: {unpaid['price'].sum():,.2f} are missing"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
