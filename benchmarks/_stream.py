"""The stream that the benchmarks share: 156-byte rows with zipf-distributed integer keys, made once per process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

KEYS = 10_000
ZIPF = 0.5
PAYLOAD = 128
DISTINCT_BATCHES = 12
LINE_WORDS = 10

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


@functools.cache
def line_batches(words: int, seed: int = 0) -> list[pa.RecordBatch]:
    """Return some batches of lines with so many words in all: words of 2 to 15 letters, by Zipf's law."""
    vocabulary = np.random.default_rng(0)
    letters = np.array([*"abcdefghijklmnopqrstuvwxyz"])
    lengths = np.clip(vocabulary.poisson(6, KEYS) + 1, 2, 15)
    names = np.array(["".join(vocabulary.choice(letters, size=length)) for length in lengths])
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(DISTINCT_BATCHES):
        chosen = names[rng.choice(KEYS, size=words, p=key_weights(exponent=1.0))].tolist()
        lines = [" ".join(chosen[start : start + LINE_WORDS]) for start in range(0, words, LINE_WORDS)]
        made.append(pa.record_batch({"line": lines}))
    return made


def stream(
    total: int, rows: int, seed: int = 0, made: Callable[[int, int], list[pa.RecordBatch]] = batches
) -> Iterator[pa.RecordBatch]:
    """Yield `total` rows in batches of `rows`."""
    ready = made(rows, seed)
    STARTED.append(time.time())
    for number in range(total // rows):
        yield ready[number % len(ready)]


def warm(rows: int, made: Callable[[int, int], list[pa.RecordBatch]] = batches) -> None:
    """Make the batches of later streams, and clear the start times of earlier ones."""
    for seed in (0, 1):
        made(rows, seed)
    STARTED.clear()


def started() -> float:
    """Return the start time of the first stream of this process; 0 for none."""
    return min(STARTED, default=0.0)
