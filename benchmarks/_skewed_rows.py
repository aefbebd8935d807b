"""Rows whose keys are skewed to one half of the shards, then to the other; and how long each of them waited."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace

SHARDS = 8
BATCH_SECONDS = 0.02
WARM_SECONDS = 6.0
PERIOD = 6.0
"""Seconds for which the load of one half of the shards rises."""

_timed: list[tuple[np.ndarray, np.ndarray]] = []
_lock = threading.Lock()


def keyed_rows(seconds: float, rate: float, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield every key once, then random keys; the shares of the even and of the odd shards change."""
    random = np.random.default_rng(0)
    every = np.arange(SHARDS * keys)
    hashes = hash_columns(pa.record_batch({"key": every}), ("key",))
    odd = KeySpace(1, SHARDS).shard_of(hashes) % 2 == 1
    sides = every[~odd], every[odd]
    first = np.array_split(every, 100)
    size = int(rate * BATCH_SECONDS)
    began = time.time()
    for number in range(int(seconds / BATCH_SECONDS)):
        at = number * BATCH_SECONDS
        if number < len(first):
            chosen = first[number]
            random.shuffle(chosen)
        else:
            # The rate of one side rises by half, within a period.
            side, risen = int(at / PERIOD) % 2, 0.5 * (at % PERIOD) / PERIOD
            counts = [size // 2, int(size * (0.5 + risen / 2))]
            chosen = np.concatenate([random.choice(sides[side - 1], counts[0]), random.choice(sides[side], counts[1])])
        time.sleep(max(0.0, began + at - time.time()))
        due = np.full(len(chosen), began + at if at > WARM_SECONDS else np.nan)
        now = pa.array(np.full(len(chosen), int(at * 1e6)), pa.timestamp("us"))
        yield pa.record_batch({"key": chosen, "value": chosen.astype(float), "due": due, "at": now})


def timed(batch: pa.RecordBatch) -> pa.Array:
    """Return the values, and record the latencies of the rows."""
    waited = time.time() - batch["due"].to_numpy()
    with _lock:
        _timed.append((batch["due"].to_numpy(), waited))
    return batch["value"]


def take_latencies() -> tuple[np.ndarray, np.ndarray]:
    """Return when the rows in this process were due, and how long each waited, and begin again."""
    global _timed
    with _lock:
        found, _timed = _timed, []
    due = np.concatenate([np.empty(0), *(due for due, _ in found)])
    waited = np.concatenate([np.empty(0), *(waited for _, waited in found)])
    return due[~np.isnan(due)], waited[~np.isnan(due)]
