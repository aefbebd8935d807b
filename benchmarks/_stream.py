"""The stream that the benchmarks share: 156-byte rows with zipf-distributed integer keys, made once per process."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

KEYS = 10_000
ZIPF = 0.5
PAYLOAD = 128
DISTINCT_BATCHES = 12

STARTED: list[float] = []
"""Start time of each stream that this process has read."""


def key_weights(keys: int = KEYS, exponent: float = ZIPF) -> np.ndarray:
    """Return the share of each key, by rank."""
    weights = np.arange(1, keys + 1, dtype=float) ** -exponent
    return weights / weights.sum()


@functools.cache
def batches(rows: int, seed: int = 0) -> list[pa.RecordBatch]:
    """Return some batches, which a source repeats."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(KEYS)
    payload = pa.array([rng.bytes(PAYLOAD)] * rows, pa.binary())
    made = []
    for number in range(DISTINCT_BATCHES):
        keys = names[rng.choice(KEYS, size=rows, p=key_weights())].astype(np.int64)
        times = (np.arange(rows) + number * rows).astype("datetime64[us]")
        made.append(pa.record_batch({"key": keys, "value": rng.normal(size=rows), "time": times, "payload": payload}))
    return made


def stream(total: int, rows: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield `total` rows in batches of `rows`."""
    made = batches(rows, seed)
    STARTED.append(time.time())
    for number in range(total // rows):
        yield made[number % len(made)]


def warm(rows: int) -> None:
    """Make the batches of later streams, and clear the start times of earlier ones."""
    for seed in (0, 1):
        batches(rows, seed)
    STARTED.clear()


def started() -> float:
    """Return the start time of the first stream of this process; 0 for none."""
    return min(STARTED, default=0.0)
