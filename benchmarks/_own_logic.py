"""Three computes of own logic, per batch, per row and per key, over three source instances; the sinks append to files.

One source has half of the rows, the two instances of the other a quarter each. Also the pieces of the same program for
a bare hand-over and for Bytewax: the slices of the stream in the order in which they are due, and the fold of a row.
"""

from __future__ import annotations

import functools
import heapq
import os
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import dask_elastic as de
from dask_elastic.topology.pace import Pace

LEVELS = ("batch", "row", "key")
SCHEMA = pa.schema({"key": pa.int64(), "seq": pa.int64(), "val": pa.int64()})
STATE = {name: pa.int64() for name in ("n", "sum", "least", "most", "last")}
OUTPUT = {name: pa.int64() for name in ("key", "n", "seq", "sum")}
KEYS = 200
ZIPF = 1.3
ITEM_ROWS = 300

STARTED: list[float] = []
"""When each instance of a source of this process began to read."""

SUB_BATCHES: list[int] = []
"""Rows of each sub-batch that the logic per batch has processed in this process."""

WRITTEN: list[int] = []
"""Rows of each batch that the sinks of this process have written."""


def forget_batches() -> None:
    """Clear the records of this process."""
    for record in (STARTED, SUB_BATCHES, WRITTEN):
        record.clear()


def batches_so_far() -> tuple[float, int, int, int, int]:
    """Return the first start, then number and rows of sub-batches, then number and rows of written batches."""
    first = min(STARTED, default=float("inf"))
    return first, len(SUB_BATCHES), sum(SUB_BATCHES), len(WRITTEN), sum(WRITTEN)


def rows_of(instance: int, number: int) -> pa.RecordBatch:
    """Return one item of a source instance."""
    rng = np.random.default_rng([instance, number])
    ranks = np.minimum(rng.zipf(ZIPF, ITEM_ROWS) - 1, KEYS - 1)
    first = number * ITEM_ROWS
    columns = [instance * KEYS + ranks, np.arange(first, first + ITEM_ROWS), rng.integers(-1_000, 1_000, ITEM_ROWS)]
    return pa.record_batch([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)


def items_of(instance: int, items: int) -> Iterator[pa.RecordBatch]:
    """Yield the items of a source instance."""
    STARTED.append(time.time())
    for number in range(items):
        yield rows_of(instance, number)


def quarter_items(items: int, instance: int, instances: int) -> Iterator[pa.RecordBatch]:
    """Yield the items of one of the two instances with a quarter of the rows."""
    return items_of(1 + instance, items)


def item_counts(rate: float, seconds: float) -> tuple[int, int, int]:
    """Return how many items each source instance has."""
    quarter = max(1, round(rate * seconds / 4 / ITEM_ROWS))
    return 2 * quarter, quarter, quarter


def slices(rate: float, seconds: float, began: float) -> Iterator[tuple[float, pa.RecordBatch]]:
    """Yield the slices of all source instances with their due times, in the order in which they are due."""

    def paced(instance: int, items: int, share: float) -> Iterator[tuple[float, pa.RecordBatch]]:
        pace = Pace(rate * share, began)
        for rows in items_of(instance, items):
            for part, due in pace.slice(rows):
                assert due is not None, "the stream has a rate"
                yield due, part

    counts = item_counts(rate, seconds)
    shares = (0.5, 0.25, 0.25)
    streams = [paced(n, items, share) for n, (items, share) in enumerate(zip(counts, shares, strict=True))]
    return heapq.merge(*streams, key=lambda pair: pair[0])


def fold(state: MutableMapping[str, Any], seq: int, val: int) -> int:
    """Add a row to a key's state; returns how many rows the key has had."""
    n = (state["n"] or 0) + 1
    state["n"], state["sum"], state["last"] = n, (state["sum"] or 0) + val, seq
    state["least"] = val if n == 1 else min(state["least"], val)
    state["most"] = val if n == 1 else max(state["most"], val)
    return n


def per_batch(batch: pa.RecordBatch, state: Any) -> pa.RecordBatch:
    """Fold the rows of a batch on whole columns."""
    SUB_BATCHES.append(batch.num_rows)
    keys = np.asarray(state.ordinals)
    order = np.argsort(keys, kind="stable")
    sorted_keys, seq, val = keys[order], batch["seq"].to_numpy()[order], batch["val"].to_numpy()[order]
    counts = np.bincount(sorted_keys, minlength=len(state.keys))
    first = np.cumsum(counts) - counts
    before = {name: np.asarray(state.get(name, default=0)) for name in STATE}
    running = np.cumsum(val)
    running += (before["sum"] + val[first] - running[first])[sorted_keys]
    least, most = np.minimum.reduceat(val, first), np.maximum.reduceat(val, first)
    new = before["n"] == 0
    last = first + counts - 1
    state.set("n", before["n"] + counts)
    state.set("sum", running[last])
    state.set("least", np.where(new, least, np.minimum(before["least"], least)))
    state.set("most", np.where(new, most, np.maximum(before["most"], most)))
    state.set("last", seq[last])
    n, total = np.empty_like(val), np.empty_like(val)
    n[order] = before["n"][sorted_keys] + np.arange(len(val)) - first[sorted_keys] + 1
    total[order] = running
    return pa.record_batch({"key": batch["key"], "n": n, "seq": batch["seq"], "sum": total})


@de.per_row(output=OUTPUT)
def per_row(row: dict[str, Any], state: MutableMapping[str, Any]) -> dict[str, Any]:
    """Fold one row."""
    return {"key": row["key"], "n": fold(state, row["seq"], row["val"]), "seq": row["seq"], "sum": state["sum"]}


@de.per_key(output=OUTPUT)
def per_key(key: int, batch: pa.RecordBatch, state: MutableMapping[str, Any]) -> list[dict[str, Any]]:
    """Fold the rows of one key."""
    return [
        {"key": key, "n": fold(state, seq, val), "seq": seq, "sum": state["sum"]}
        for seq, val in zip(batch["seq"].to_pylist(), batch["val"].to_pylist(), strict=True)
    ]


LOGIC = {"batch": per_batch, "row": per_row, "key": per_key}


def append_keys(folder: Path, rows: pa.RecordBatch) -> None:
    """Append the keys of a batch to a file of this process; the function of a sink."""
    WRITTEN.append(rows.num_rows)
    with (folder / str(os.getpid())).open("ab") as file:
        file.write(rows["key"].to_numpy().tobytes())


def make_topology(rate: float, seconds: float, folder: Path) -> tuple[de.Topology, int]:
    """Return the topology and how many rows its sources have."""
    first, second, third = item_counts(rate, seconds)
    topology = de.Topology("thin")
    table = pa.Table.from_batches(list(items_of(0, first)))
    half = topology.source("table", de.sources.Arrow(table, rate=rate / 2, batch_rows=ITEM_ROWS))

    items = functools.partial(quarter_items, second)
    quarters = topology.source("function", de.sources.Iterable(items, parallel=2, rate=rate / 2))
    for level in LEVELS:
        (folder / level).mkdir()
        computed = (
            half.union(quarters)
            .key_by("key")
            .compute(LOGIC[level], state=STATE, name=f"per_{level}", executors=2, shards=32)
        )
        append = functools.partial(append_keys, folder / level)
        computed.sink(de.sinks.Call(append), name=f"{level}_file")
    return topology, (first + second + third) * ITEM_ROWS
