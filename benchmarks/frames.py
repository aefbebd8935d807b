"""Milliseconds that a map of one batch takes in Arrow, pandas and Polars: the same rows out of each.

Prints one JSON line per work and library: the median of the rounds, which alternate between the libraries, and the
ratio to Arrow. The time is that of the operator: the function, with its conversions, and the check of what it returns.
`convert` only converts to a frame and back, `columns` filters and adds two columns, `group` subtracts from each row the
mean of its group.

    python benchmarks/frames.py [--rows 10000] [--rounds 200]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.operators import MapOperator

Function = Callable[[pa.RecordBatch], object]


def make_batch(rows: int) -> pa.RecordBatch:
    """Return flights: two texts, an integer, a float with nulls, a time."""
    random = np.random.default_rng(0)
    airports = np.array(["JFK", "LGA", "EWR", "ORD", "LAX", "ATL", "MIA", "BOS"])
    route = np.char.add(np.char.add(random.choice(airports, rows), "-"), random.choice(airports, rows))
    return pa.record_batch(
        {
            "plane": np.char.add("N", random.integers(0, 3_000, rows).astype(str)),
            "route": route,
            "distance": random.integers(100, 3_000, rows),
            "delay": pa.array(random.normal(10, 30, rows), mask=random.random(rows) < 0.03),
            "at": np.datetime64("2013-01-01", "us") + np.arange(rows),
        }
    )


def arrow_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    known = batch.filter(pc.is_valid(batch["delay"]))
    origin = pc.utf8_slice_codeunits(known["route"], 0, 3)
    return known.append_column("origin", origin).append_column("late", pc.greater(known["delay"], 15.0))


def pandas_columns(batch: pa.RecordBatch) -> pd.DataFrame:
    known = batch.to_pandas().dropna(subset=["delay"])
    return known.assign(origin=known["route"].str[:3], late=known["delay"] > 15)


def polars_columns(batch: pa.RecordBatch) -> pl.DataFrame:
    known = pl.from_arrow(batch).filter(pl.col("delay").is_not_null())
    return known.with_columns(origin=pl.col("route").str.slice(0, 3), late=pl.col("delay") > 15)


def arrow_group(batch: pa.RecordBatch) -> pa.RecordBatch:
    codes = batch["route"].dictionary_encode()
    means = pa.table({"code": codes.indices, "delay": batch["delay"]}).group_by("code").aggregate([("delay", "mean")])
    by_code = means.sort_by("code")["delay_mean"].combine_chunks()
    return batch.append_column("beyond", pc.subtract(batch["delay"], by_code.take(codes.indices)))


def pandas_group(batch: pa.RecordBatch) -> pd.DataFrame:
    rows = batch.to_pandas()
    return rows.assign(beyond=rows["delay"] - rows.groupby("route")["delay"].transform("mean"))


def polars_group(batch: pa.RecordBatch) -> pl.DataFrame:
    mean = pl.col("delay").mean().over("route")
    return pl.from_arrow(batch).with_columns(beyond=pl.col("delay") - mean)


WORKS: dict[str, dict[str, Function]] = {
    "convert": {"arrow": lambda batch: batch, "pandas": lambda batch: batch.to_pandas(), "polars": pl.from_arrow},
    "columns": {"arrow": arrow_columns, "pandas": pandas_columns, "polars": polars_columns},
    "group": {"arrow": arrow_group, "pandas": pandas_group, "polars": polars_group},
}


def milliseconds(functions: dict[str, Function], batch: pa.RecordBatch, rounds: int) -> dict[str, float]:
    """Return the median time of each function."""
    operators = {name: MapOperator(name, function) for name, function in functions.items()}
    rows = {name: sum(part.num_rows for part in operator.apply(batch)) for name, operator in operators.items()}
    if len(set(rows.values())) != 1:
        raise AssertionError(f"the libraries return different numbers of rows: {rows}")
    found: dict[str, list[float]] = {name: [] for name in operators}
    for _ in range(rounds):
        for name, operator in operators.items():
            began = time.perf_counter()
            operator.apply(batch)
            found[name].append(time.perf_counter() - began)
    return {name: 1e3 * statistics.median(times) for name, times in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    chosen = parser.parse_args()
    batch = make_batch(chosen.rows)
    for work, functions in WORKS.items():
        taken = milliseconds(functions, batch, chosen.rounds)
        for library, each in taken.items():
            ratio = each / taken["arrow"] if work != "convert" else None
            line = {"work": work, "library": library, "milliseconds": round(each, 3), "ratio_to_arrow": ratio}
            print(json.dumps({**line, **vars(chosen)}))


if __name__ == "__main__":
    main()
