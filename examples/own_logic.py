"""User-defined logic: an aggregate in Python, and a function of batches with state per key."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg

TICKERS = ["ABC", "DEF", "GHI", "JKL", "MNO"]


def make_prices(rows: int) -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table(
        {
            "ticker": random.choice(TICKERS, size=rows),
            "price": np.round(100 + random.normal(size=rows).cumsum() / 10, 2),
        }
    )


class Spread(agg.UserAggregate):
    """The distance between the highest and the lowest price."""

    type = pa.float64()

    def init(self) -> tuple[float, float]:
        return np.inf, -np.inf

    def add(self, acc: tuple[float, float], values: pa.RecordBatch) -> tuple[float, float]:
        prices = values["price"].to_numpy()
        return min(acc[0], float(prices.min())), max(acc[1], float(prices.max()))

    def merge(self, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        return min(a[0], b[0]), max(a[1], b[1])

    def result(self, acc: tuple[float, float]) -> float:
        return acc[1] - acc[0]


def changes(batch: pa.RecordBatch, state: object) -> pa.RecordBatch:
    """Return the difference of each price from the ticker's previous one; null for a ticker's first price."""
    frame = pd.DataFrame({"key": state.ordinals, "price": batch["price"].to_numpy()})
    before = frame.groupby("key")["price"].shift()
    known = state.get("last", default=np.nan)
    before = before.fillna(pd.Series(known[state.ordinals]))
    state.set("last", frame.groupby("key")["price"].last().to_numpy())
    change = pa.array(frame["price"] - before, from_pandas=True)
    return pa.RecordBatch.from_arrays([batch["ticker"], change], names=["ticker", "change"])


def build(prices: pa.Table) -> de.Topology:
    topology = de.Topology("prices")
    source = topology.source("prices", de.sources.Arrow(prices, batch_rows=1_000))
    source.key_by("ticker").compute({"spread": Spread(["price"])}, name="spreads")
    changed = source.key_by("ticker").compute(changes, state={"last": pa.float64()})
    changed.sink(de.sinks.Collect(), name="changes_out")
    return topology


def main() -> int:
    prices = make_prices(50_000)
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        job = de.submit(build(prices), client)
        job.wait(timeout=60)
        spreads = job.state("spreads").to_pandas().set_index("ticker")["spread"].sort_index()
        found = job.collect("changes_out").to_pandas()
    by_ticker = prices.to_pandas().groupby("ticker")["price"]
    expected = by_ticker.max() - by_ticker.min()
    right = bool((spreads == expected).all()) and found["change"].isna().sum() == len(TICKERS)
    # The rows of one ticker stay in order, so its changes sum to its last price minus its first.
    sums = found.groupby("ticker")["change"].sum()
    right &= np.allclose(sums, by_ticker.last() - by_ticker.first())
    for ticker in TICKERS:
        print(f"{ticker}: spread {spreads[ticker]:6.2f}, total change {sums[ticker]:+6.2f}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
