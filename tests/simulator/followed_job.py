"""A job of two stateful operators, and its expected result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import World
from dask_elastic.topology import Sink, Source, Topology, aggregate

KEYS = 12
BUCKETS = 5
SOURCES = 2
MODULUS = 2**31 - 1
STATE = {name: pa.int64() for name in ("count", "total", "least", "greatest", "last0", "last1", "digest0", "digest1")}


class Numbers(Source):
    """Batches of rows with their key, their instance and a number that increases within the instance."""

    parallel = SOURCES

    def __init__(self, batches: list[list[pa.RecordBatch]]):
        self.batches = batches

    def read(self, context):
        start = context.offset or 0
        for number, rows in enumerate(self.batches[context.instance][start:], start):
            yield rows, number + 1


class UnopenedSink(Sink):
    def open(self, context):
        raise AssertionError("a simulated sink is not opened")


def follow(rows: pa.RecordBatch, state) -> pa.RecordBatch:
    """Keep per key what detects lost, repeated and reordered rows; return the rows."""
    values = {name: state.get(name) for name in STATE}
    fresh = values["count"] == 0
    for group, src, seq, value in zip(
        state.ordinals.tolist(), *(rows.column(name).to_pylist() for name in ("src", "seq", "value")), strict=True
    ):
        values["count"][group] += 1
        values["total"][group] += value
        values["least"][group] = value if fresh[group] else min(value, values["least"][group])
        values["greatest"][group] = value if fresh[group] else max(value, values["greatest"][group])
        values[f"last{src}"][group] = seq
        values[f"digest{src}"][group] = (int(values[f"digest{src}"][group]) * 31 + seq) % MODULUS
        fresh[group] = False
    for name in STATE:
        state.set(name, values[name])
    return rows


def make_batches(
    random: np.random.Generator, most_rows: int = 15, batches: int | None = None
) -> list[list[pa.RecordBatch]]:
    return [[*make_rows(random, source, most_rows, batches)] for source in range(SOURCES)]


def make_rows(
    random: np.random.Generator, source: int, most_rows: int, batches: int | None
) -> Iterator[pa.RecordBatch]:
    seq = 1
    for size in random.integers(1, most_rows + 1, size=batches or int(random.integers(2, 5))).tolist():
        key = (random.integers(0, KEYS, size) * random.random(size)).astype(np.int64)
        yield pa.record_batch(
            {
                "key": pa.array([f"k{number}" for number in key.tolist()]),
                "bucket": pa.array(key % BUCKETS),
                "src": pa.array(np.full(size, source)),
                "seq": pa.array(np.arange(seq, seq + size)),
                "value": pa.array(random.integers(-100, 100, size)),
            }
        )
        seq += size


def make_topology(batches: list[list[pa.RecordBatch]], shards: int) -> Topology:
    topology = Topology("followed")
    numbers = topology.source("numbers", Numbers(batches))
    per_key = numbers.key_by("key").compute(follow, name="per_key", state=STATE, shards=shards)
    aggregates = {
        "count": aggregate.Count(),
        "total": aggregate.Sum("value"),
        "least": aggregate.Min("value"),
        "mean": aggregate.Mean("value"),
        # Only here so that the rows keep the columns that define their order.
        "last": aggregate.custom(["key", "src", "seq"], int, count_rows, int.__add__, int, pa.int64()),
    }
    per_bucket = per_key.key_by("bucket").compute(aggregates, name="per_bucket", shards=8)
    per_bucket.sink(UnopenedSink(), name="results")
    return topology


def count_rows(count: int, rows: pa.RecordBatch) -> int:
    return count + rows.num_rows


def state_of(world: World, operator: str, key: str) -> dict[object, dict[str, object]]:
    found: dict[object, dict[str, object]] = {}
    for identity, home in world.homes.items():
        store, compute = home.executor.store, next((c for c in home.component.computes if c.name == operator), None)
        if compute is None:
            continue
        table = read_state(compute, store if operator == identity.component else store.behind(operator))
        for row in [] if table is None else table.to_pylist():
            assert row[key] not in found, "a key is in the state of two executors"
            found[row[key]] = row
    return found


def last_outputs(world: World) -> dict[object, dict[str, object]]:
    """Return the last value of each bucket at the sink, and check that its counts increase."""
    last: dict[object, dict[str, object]] = {}
    received = [entry for sink in world.sinks.values() for entry in sink.received]
    for _, batch in sorted(received, key=lambda entry: entry[0]):
        for row in batch.to_pylist():
            before = last.get(row["bucket"])
            assert before is None or before["count"] < row["count"], f"an output overtook another: {row}"
            last[row["bucket"]] = row
    return last


def expected_per_key(rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    truth: dict[object, dict[str, object]] = {}
    for row in rows:
        known = truth.setdefault(row["key"], {"key": row["key"], **dict.fromkeys(STATE, 0)})
        value, src, seq = row["value"], row["src"], row["seq"]
        known["least"] = min(value, known["least"]) if known["count"] else value
        known["greatest"] = max(value, known["greatest"]) if known["count"] else value
        known["count"] += 1
        known["total"] += value
        known[f"last{src}"] = seq
        known[f"digest{src}"] = (known[f"digest{src}"] * 31 + seq) % MODULUS
    return truth


def expected_per_bucket(rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    values: dict[object, list[int]] = {}
    for row in rows:
        values.setdefault(row["bucket"], []).append(row["value"])
    return {
        bucket: {
            "bucket": bucket,
            "count": len(all_),
            "total": sum(all_),
            "least": min(all_),
            "mean": sum(all_) / len(all_),
            "last": len(all_),
        }
        for bucket, all_ in values.items()
    }
