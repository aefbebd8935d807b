"""Tracks the visitors of a shop row by row: items viewed recently, and the contents of their baskets."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
from dask.distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg

VISITORS, ITEMS = 200, 40
SESSION_SECONDS = 1.0
"""Time after which a viewed item expires."""


def make_clicks(rows: int) -> pa.Table:
    random = np.random.default_rng(7)
    return pa.table(
        {
            "visitor": random.integers(0, VISITORS, rows),
            "item": np.char.add("item-", random.integers(0, ITEMS, rows).astype(str)),
            "action": random.choice(["look", "put", "take"], rows, p=[0.6, 0.3, 0.1]),
            "price": np.round(random.gamma(2.0, 20.0, rows), 2),
        }
    )


@de.per_row(output={"visitor": pa.int64(), "item": pa.string(), "times": pa.int64()})
def follow(row: dict[str, Any], state: Any) -> dict[str, Any] | None:
    """Emit a visitor who looks at an item for the third time within a session."""
    looked = state["looked"]
    basket = state["basket"]
    item = row["item"]
    if row["action"] == "put":
        basket[item] = basket.get(item, 0) + 1
    elif row["action"] == "take":
        basket.pop(item, None)
    else:
        looked.append(item)
        times = list(looked).count(item)
        if times == 3:
            return {"visitor": row["visitor"], "item": item, "times": times}
    return None


def build(clicks: pa.Table) -> de.Topology:
    topology = de.Topology("sessions")
    source = topology.source("clicks", de.sources.Arrow(clicks, batch_rows=500))
    kept = {"looked": de.List(pa.string(), ttl=SESSION_SECONDS), "basket": de.Map(pa.string(), pa.int64())}
    source.key_by("visitor").compute(follow, state=kept, name="visitors").sink(de.sinks.Collect(), name="offers")
    figures = {"dearest": agg.TopK("price", 3, label="visitor"), "visitors": agg.DistinctCount("visitor")}
    source.key_by("item").compute(figures, name="items")
    return topology


def baskets(clicks: pa.Table) -> dict[int, dict[str, int]]:
    """Return the expected contents of the baskets."""
    found: dict[int, dict[str, int]] = {}
    for row in clicks.to_pylist():
        basket = found.setdefault(row["visitor"], {})
        if row["action"] == "put":
            basket[row["item"]] = basket.get(row["item"], 0) + 1
        elif row["action"] == "take":
            basket.pop(row["item"], None)
    return {visitor: basket for visitor, basket in found.items() if basket}


def main() -> int:
    clicks = make_clicks(20_000)
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        job = de.submit(build(clicks), client)
        job.wait(timeout=60)
        offers = job.collect("offers").num_rows
        items = job.state("items").to_pandas().set_index("item")
        deadline = time.monotonic() + 20 * SESSION_SECONDS
        while True:
            visitors = job.state("visitors").to_arrow().to_pylist()
            if not any(row["looked"] for row in visitors) or time.monotonic() > deadline:
                break
            time.sleep(SESSION_SECONDS / 10)
    frame = clicks.to_pandas()
    right = {row["visitor"]: dict(row["basket"]) for row in visitors if row["basket"]} == baskets(clicks)
    right &= not any(row["looked"] for row in visitors)
    right &= items["visitors"].to_dict() == frame.groupby("item")["visitor"].nunique().to_dict()
    dearest = frame.sort_values("price", ascending=False).groupby("item")["price"].apply(lambda prices: [*prices[:3]])
    right &= {item: [one["price"] for one in top] for item, top in items["dearest"].items()} == dearest.to_dict()
    print(f"{offers} offers were made; viewed items have expired, baskets have not")
    first = items.loc["item-0"]
    print(f"item-0 was clicked by {first['visitors']} visitors; its most expensive click was {first['dearest'][0]}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
