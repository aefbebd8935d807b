"""Rows with due times, and latencies by kind of row: in shards that move and in shards that stay."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dask_elastic.meters import LatencyHistogram
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.topology.pace import SLICE_SECONDS, rows_within

SHARDS = 64
KEYS_PER_SHARD = 600
SERVICE_SECONDS = 20e-6
WARM_SECONDS = 3.0
DISTINCT_BATCHES = 50

UNCOUNTED, STAYS, MAY_MOVE = range(3)
"""Kinds of rows: of the warm-up, of shards that never move, and of shards that may move."""

LATENCIES: dict[int, LatencyHistogram] = {}
"""Latencies in this process, by kind of row."""

_lock = threading.Lock()


def forget_latencies() -> None:
    """Clear the latencies of this process."""
    LATENCIES.update({STAYS: LatencyHistogram(), MAY_MOVE: LatencyHistogram()})


def latencies() -> dict[int, LatencyHistogram]:
    """Return the latencies of this process."""
    return LATENCIES


def movable(keys: np.ndarray) -> np.ndarray:
    """Return for each key whether its shard is in the half that may move."""
    space = KeySpace(1, SHARDS)
    hashes = hash_columns(pa.record_batch({"key": keys}), ("key",))
    return space.shard_of(hashes) < SHARDS // 2


def timed_rows(seconds: float, rate: float) -> Iterator[pa.RecordBatch]:
    """Yield every key once, then random keys, uniformly: all shards get equal state and load."""
    rng = np.random.default_rng(0)
    may_move = movable(np.arange(SHARDS * KEYS_PER_SHARD))
    first = np.arange(SHARDS * KEYS_PER_SHARD)
    # As the slices of a paced source: all rows of a slice are due at the same time.
    size = rows_within(rate, SLICE_SECONDS, 65_536)
    others = [rng.integers(0, len(first), size) for _ in range(DISTINCT_BATCHES)]
    began = time.time()
    position = 0
    for number in range(-1, int(seconds * rate / size)):
        keys = first if number < 0 else others[number % DISTINCT_BATCHES]
        seconds_in = position / rate
        kind = np.where(may_move[keys], MAY_MOVE, STAYS) if seconds_in > WARM_SECONDS else np.zeros(len(keys), np.int64)
        due = np.full(len(keys), began + seconds_in)
        yield pa.record_batch({"key": keys, "value": keys.astype(float), "due": due, "kind": kind})
        position += len(keys)


def emulated(batch: pa.RecordBatch) -> pa.Array:
    """Return the value column after the service time of the rows, and record their latencies."""
    time.sleep(batch.num_rows * SERVICE_SECONDS)
    waited = time.time() - batch["due"].to_numpy()
    kinds = batch["kind"].to_numpy()
    with _lock:
        for kind, histogram in LATENCIES.items():
            histogram.record_many(waited[kinds == kind])
    return batch["value"]
