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
RISE = 6.0
HELD = 4.0
"""Seconds in which the rate of one half of the shards rises by half, and for which it stays; the paper has minutes."""

PLACING = 4.0
"""Seconds before the first row."""

_notes: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"rows": [], "results": []}
_lock = threading.Lock()


def side_rates(at: float) -> tuple[float, float]:
    """Return the rates of the even and of the odd shards, as multiples of the first one, some seconds after warming."""
    side, of_period = divmod(max(at, 0.0), RISE + HELD)
    risen = 1 + 0.5 * min(of_period / RISE, 1.0)
    return (risen, 1.0) if int(side) % 2 == 0 else (1.0, risen)


def keyed_rows(seconds: float, warm: float, rate: float, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield every key once while warming, then random keys; the rates of the even and of the odd shards change."""
    random = np.random.default_rng(0)
    every = np.arange(SHARDS * keys)
    hashes = hash_columns(pa.record_batch({"key": every}), ("key",))
    odd = KeySpace(1, SHARDS).shard_of(hashes) % 2 == 1
    sides = every[~odd], every[odd]
    first = np.array_split(random.permutation(every), int(warm / BATCH_SECONDS / 2))
    half = rate * BATCH_SECONDS / 2
    # Before the first row shards are given to both workers: they have no state.
    began = time.time() + PLACING
    for number in range(int((warm + seconds) / BATCH_SECONDS)):
        at = number * BATCH_SECONDS
        if number < len(first):
            chosen = first[number]
        else:
            rates = side_rates(at - warm)
            picked = [random.choice(side, int(half * risen)) for side, risen in zip(sides, rates, strict=True)]
            chosen = random.permutation(np.concatenate(picked))
        time.sleep(max(0.0, began + at - time.time()))
        due = np.full(len(chosen), began + at if at > warm else np.nan)
        now = pa.array(np.full(len(chosen), int((began + at) * 1e6)), pa.timestamp("us"))
        yield pa.record_batch({"key": chosen, "value": chosen.astype(float), "due": due, "at": now})


def timed(batch: pa.RecordBatch) -> pa.Array:
    """Return the values, and record the latencies of the rows."""
    _note("rows", batch["due"].to_numpy(), time.time())
    return batch["value"]


def timed_results(batch: pa.RecordBatch) -> None:
    """Record how long after the end of its window each result has come; the function of a sink."""
    ends = batch["window_end"].cast(pa.int64()).to_numpy() / 1e6
    _note("results", ends, time.time())


def _note(kind: str, due: np.ndarray, now: float) -> None:
    with _lock:
        _notes[kind].append((due, now - due))


def take_latencies(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return when the rows or results in this process were due, and how long each waited, and begin again."""
    with _lock:
        found, _notes[kind] = _notes[kind], []
    due = np.concatenate([np.empty(0), *(due for due, _ in found)])
    waited = np.concatenate([np.empty(0), *(waited for _, waited in found)])
    return due[~np.isnan(due)], waited[~np.isnan(due)]
