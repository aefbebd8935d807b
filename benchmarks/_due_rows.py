"""Rows with due times: a paced stream of small batches, and the latencies that its rows have when they are received.

A batch holds a millisecond of rows, at least one, which are all due at once. The engine, the bare hand-over and Bytewax
get the same batches.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dask_elastic.meters import LatencyHistogram
from dask_elastic.topology.pace import rows_within

KEYS = 10_000
BATCH_SECONDS = 0.001
DISTINCT_BATCHES = 50
WARM_SECONDS = 1.0
"""Rows of the first second are not counted, or of more seconds where tasks have to move: their due time is 0."""

SCHEMA = pa.schema({"key": pa.int64(), "due": pa.float64()})


@dataclass
class Received:
    """What the sinks of this process have received.

    Parameters
    ----------
    calls, rows : int
        Batches with counted rows, and these rows.
    early : int
        How many of them were received before they were due: a source sends the rows of a tick when the first is due.
    latencies : LatencyHistogram
        Seconds from due time to reception, of the counted rows; 1 µs for those that were early.
    started : float
        When the stream began, if this process reads it; 0 otherwise.
    """

    calls: int = 0
    rows: int = 0
    early: int = 0
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    started: float = 0.0

    def merge(self, other: Received) -> None:
        """Add what another process has received."""
        self.calls += other.calls
        self.rows += other.rows
        self.early += other.early
        self.latencies.merge(other.latencies)
        self.started = max(self.started, other.started)


_received = Received()
_lock = threading.Lock()


def forget_received() -> None:
    """Clear the record of this process."""
    global _received
    with _lock:
        _received = Received()


def received() -> Received:
    """Return the record of this process."""
    return _received


def receive(rows: pa.RecordBatch) -> None:
    """Record the latency of each row; the function of a sink."""
    receive_due(rows["due"].to_numpy())


def receive_due(due: np.ndarray) -> None:
    """Record the latency of rows with these due times."""
    now = time.time()
    counted = due[due > 0]
    if not len(counted):
        return
    with _lock:
        _received.calls += 1
        _received.rows += len(counted)
        _received.early += int((now < counted).sum())
        _received.latencies.record_many(now - counted)


@functools.cache
def _keys(rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, KEYS, rows) for _ in range(DISTINCT_BATCHES)]


def due_batches(
    rate: float, seconds: float, began: float, warm: float = WARM_SECONDS
) -> Iterator[tuple[float, pa.RecordBatch]]:
    """Yield batches and their due times; the rows that are due in the first `warm` seconds are not counted."""
    size = rows_within(rate, BATCH_SECONDS, 65_536)
    keys = _keys(size)
    for number in range(int((warm + seconds) * rate / size)):
        after = number * size / rate
        due = np.full(size, began + after if after >= warm else 0.0)
        yield began + after, pa.record_batch({"key": keys[number % DISTINCT_BATCHES], "due": due})


def due_rows(rate: float, seconds: float, warm: float, wait: bool) -> Iterator[pa.RecordBatch]:
    """Yield the batches, due from now on; the function of a source.

    It waits until they are due if `wait`; otherwise the source has this rate and waits.
    """
    began = time.time()
    _received.started = began
    for due, rows in due_batches(rate, seconds, began, warm):
        if wait:
            time.sleep(max(0.0, due - time.time()))
        yield rows


def all_keys() -> pa.Table:
    """Return one row of each key, not counted, so that the state has all keys from the start."""
    return pa.table({"key": np.arange(KEYS), "due": np.zeros(KEYS)}, schema=SCHEMA)


class BareCounts:
    """Rows and newest due time of each key, in plain NumPy."""

    def __init__(self) -> None:
        self._rows = np.zeros(KEYS, np.int64)
        self._due = np.zeros(KEYS)

    def update(self, rows: pa.RecordBatch) -> np.ndarray:
        """Add a batch; returns the due times to receive."""
        keys, due = rows["key"].to_numpy(), rows["due"].to_numpy()
        np.add.at(self._rows, keys, 1)
        np.maximum.at(self._due, keys, due)
        return self._due[keys]
