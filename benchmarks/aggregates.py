"""Throughput of each aggregate and of each level of logic in one task's thread, relative to Count in the same run.

Prints a table, and one JSON line per measurement: rows per second (median of the rounds, which alternate between all
subjects) and the ratio to Count. The measured time is a task's whole work on a batch, from hashed rows to the updated
state and, with --emit, the output; it excludes queues, sources and Dask.

    python benchmarks/aggregates.py [--keys 10000] [--rows 65536] [--batches 12] [--rounds 5] [--emit]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.executor.logic import Logic, make_logic
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state import KeyedStore
from dask_elastic.topology import Compute

Subject = tuple[Any, dict[str, Any] | None]
SLOW_ROWS = 8_192
"""Rows per batch for subjects that run Python per row or key."""


def count_batch(batch: pa.RecordBatch, state: Any) -> None:
    """Count, vectorised."""
    state.set("count", state.get("count") + np.bincount(state.ordinals, minlength=len(state)))


@de.per_key
def count_key(key: int, batch: pa.RecordBatch, state: Any) -> None:
    """Count a key's rows."""
    state["count"] = state.get("count", 0) + batch.num_rows


@de.per_row
def count_row(row: dict[str, Any], state: Any) -> None:
    """Count a row."""
    state["count"] = state.get("count", 0) + 1


def newest_batch(batch: pa.RecordBatch, state: Any) -> None:
    """Keep the last ten values, vectorised."""
    state.list("newest").append(batch["value"])
    state.list("newest").keep_newest(10)


@de.per_row
def newest_row(row: dict[str, Any], state: Any) -> None:
    """Keep the last ten values."""
    state["newest"].append(row["value"])
    state["newest"].keep_newest(10)


def by_name_batch(batch: pa.RecordBatch, state: Any) -> None:
    """Count by name, vectorised."""
    alike = pd.DataFrame({"key": state.ordinals, "name": batch["name"]}).groupby(["key", "name"]).cumcount()
    counts = state.map("counts")
    counts.put(batch["name"], counts.get(batch["name"], default=0) + alike.to_numpy() + 1)


@de.per_row
def by_name_row(row: dict[str, Any], state: Any) -> None:
    """Count by name."""
    counts = state["counts"]
    counts[row["name"]] = counts.get(row["name"], 0) + 1


COUNT = {"count": pa.int64()}
NEWEST = {"newest": de.List(pa.float64())}
COUNTS = {"counts": de.Map(pa.string(), pa.int64())}
SUBJECTS: dict[str, Subject] = {
    "Count": ({"a": agg.Count()}, None),
    "Sum": ({"a": agg.Sum("value")}, None),
    "Mean": ({"a": agg.Mean("value")}, None),
    "Max": ({"a": agg.Max("value")}, None),
    "Max of 20 names": ({"a": agg.Max("name")}, None),
    "Max of texts": ({"a": agg.Max("text")}, None),
    "TopK 3": ({"a": agg.TopK("value", 3)}, None),
    "TopK 10": ({"a": agg.TopK("value", 10)}, None),
    "TopK 3, label": ({"a": agg.TopK("value", 3, label="name")}, None),
    "TopK 3 of texts": ({"a": agg.TopK("text", 3)}, None),
    "DistinctCount of 20 names": ({"a": agg.DistinctCount("name")}, None),
    "DistinctCount of numbers": ({"a": agg.DistinctCount("number")}, None),
    "DistinctCount of numbers, error 0.1": ({"a": agg.DistinctCount("number", error=0.1)}, None),
    "count per batch": (count_batch, COUNT),
    "count per batch, ttl": (count_batch, {"count": de.Value(pa.int64(), ttl="1h")}),
    "count per key": (count_key, COUNT),
    "count per row": (count_row, COUNT),
    "newest 10 per batch": (newest_batch, NEWEST),
    "newest 10 per batch, ttl": (newest_batch, {"newest": de.List(pa.float64(), ttl="1h")}),
    "newest 10 per row": (newest_row, NEWEST),
    "map of 20 per batch": (by_name_batch, COUNTS),
    "map of 20 per row": (by_name_row, COUNTS),
}


def make_batches(keys: int, rows: int, count: int) -> list[tuple[pa.RecordBatch, np.ndarray]]:
    """Return batches with their hashes: random keys, almost distinct numbers and texts, 20 names."""
    random = np.random.default_rng(0)
    names = np.array([f"name-{number}" for number in range(20)])
    made = []
    for _ in range(count):
        numbers = random.integers(0, 2**60, rows)
        batch = pa.record_batch(
            {
                "key": random.integers(0, keys, rows),
                "value": random.normal(size=rows),
                "number": numbers,
                "text": numbers.astype("U20"),
                "name": names[random.integers(0, 20, rows)],
            }
        )
        made.append((batch, hash_columns(batch, ("key",))))
    return made


def make_subject(subject: Subject, emits: bool) -> Logic:
    """Return the logic of one task that has all shards."""
    logic, state = subject
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.intp))
    store.grant(0, 0)
    return make_logic(Compute("measured", ("key",), logic, state), store, store.session(0), emits)


def columns_of(subject: Subject) -> list[str] | None:
    """Return the columns that the engine would pass; all of them for functions."""
    logic, _ = subject
    return [*Compute("measured", ("key",), logic).columns] if isinstance(logic, dict) else None


def seconds(logic: Logic, batches: list[tuple[pa.RecordBatch, np.ndarray]], clock: Callable[[], float]) -> float:
    """Return the seconds that the batches take."""
    began = clock()
    for batch, hashes in batches:
        logic.process(batch, hashes, time.time())
    return clock() - began


def measure(keys: int, rows: int, count: int, rounds: int, emits: bool) -> dict[str, float]:
    """Return rows per second by subject, without the first round, in which all keys are new."""
    logics = {name: make_subject(subject, emits) for name, subject in SUBJECTS.items()}
    found: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    large, small = make_batches(keys, rows, count), make_batches(keys, min(rows, SLOW_ROWS), max(1, count // 4))
    for number in range(rounds + 1):
        for name, logic in logics.items():
            slow = name.endswith(("per row", "per key"))
            columns = columns_of(SUBJECTS[name])
            batches = [
                (b if columns is None else b.select(columns), hashes) for b, hashes in (small if slow else large)
            ]
            taken = seconds(logic, batches, time.perf_counter)
            if number:
                found[name].append(sum(len(hashes) for _, hashes in batches) / taken)
    return {name: statistics.median(rates) for name, rates in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--emit", action="store_true")
    chosen = parser.parse_args()
    rates = measure(chosen.keys, chosen.rows, chosen.batches, chosen.rounds, chosen.emit)
    for name, rate in rates.items():
        print(f"{name:36s} {rate / 1e6:9.3f} M rows/s   {rate / rates['Count']:6.3f} x Count")
    for name, rate in rates.items():
        print(
            json.dumps(
                {"subject": name, "rows_per_second": round(rate), "ratio": rate / rates["Count"], **vars(chosen)}
            )
        )


if __name__ == "__main__":
    main()
