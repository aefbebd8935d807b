"""The stream of `windows.py`: rows in the order of event time with integer keys, and a bare loop over its windows."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state.index import fastest

KEYS = 10_000
DISTINCT_BATCHES = 12

STARTED: list[float] = []
"""Start time of each stream that this process has read."""
EMITTED: list[tuple[int, int]] = []
"""For each batch of results: results, and rows that they count."""


@functools.cache
def columns(rows: int, seed: int) -> list[tuple[pa.Array, pa.Array]]:
    """Return keys and values of some batches, which a source repeats."""
    rng = np.random.default_rng(seed)
    return [(pa.array(rng.integers(0, KEYS, rows)), pa.array(rng.normal(size=rows))) for _ in range(DISTINCT_BATCHES)]


def event_stream(total: int, rows: int, per_second: float, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield `total` rows in batches of `rows`, `per_second` of them for each second of event time."""
    made = columns(rows, seed)
    within = (np.arange(rows) * (1e6 / per_second)).astype(np.int64)
    STARTED.append(time.time())
    for number in range(total // rows):
        keys, values = made[number % len(made)]
        times = (within + int(number * rows * 1e6 / per_second)).view("datetime64[us]")
        yield pa.record_batch([keys, values, pa.array(times)], names=["key", "value", "at"])


def warm(rows: int) -> None:
    """Make the batches of later streams, and forget what was noted of earlier ones."""
    for seed in (0, 1):
        columns(rows, seed)
    STARTED.clear()
    EMITTED.clear()


def started() -> float:
    """Return the start time of the first stream of this process; 0 for none."""
    return min(STARTED, default=0.0)


def note(results: pa.RecordBatch) -> None:
    """Note a batch of results."""
    EMITTED.append((results.num_rows, int(results["rows"].to_numpy().sum())))


def emitted() -> tuple[int, int]:
    """Return the number of results, and of the rows that they count."""
    return sum(count for count, _ in EMITTED), sum(rows for _, rows in EMITTED)


class BareWindows:
    """Count and sum per key and slice in plain NumPy; instances are sums over the last slices."""

    def __init__(self, slices: int, slice_us: int):
        self._index = fastest()()
        self._keys = np.zeros(KEYS, np.int64)
        self._slices = slices
        self._slice_us = slice_us
        self._partials: dict[int, list[np.ndarray]] = {}
        self._next = 0

    def update(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add a batch, then emit the instances that end before its newest row."""
        slots = self._index.lookup(hashes)
        if (slots < 0).any():
            missing, first = np.unique(hashes, return_index=True)
            new = self._index.lookup(missing) < 0
            count = len(self._index)
            self._index.insert(missing[new], np.arange(count, count + new.sum()))
            self._keys[count : count + new.sum()] = rows["key"].to_numpy()[first[new]]
            slots = self._index.lookup(hashes)
        values = rows["value"].to_numpy()
        numbers = rows["at"].to_numpy().view(np.int64) // self._slice_us
        first, last = int(numbers.min()), int(numbers.max())
        for number in range(first, last + 1):
            chosen = slice(None) if first == last else numbers == number
            partial = self._partials.setdefault(number, [np.zeros(KEYS, np.int64), np.zeros(KEYS)])
            partial[0] += np.bincount(slots[chosen], minlength=KEYS)
            partial[1] += np.bincount(slots[chosen], weights=values[chosen], minlength=KEYS)
        self.close(last)

    def close(self, until: int) -> None:
        """Emit the instances that end with a slice before `until`."""
        for end in range(self._next, until):
            parts = [self._partials[n] for n in range(end - self._slices + 1, end + 1) if n in self._partials]
            if (end + 1) % self._slices and self._slices == 1:
                continue
            counts, sums = (np.sum([part[side] for part in parts], axis=0) for side in (0, 1))
            some = np.flatnonzero(counts)
            start, stop = ((end + 1 - self._slices) * self._slice_us, (end + 1) * self._slice_us)
            bounds = [pa.array(np.full(len(some), bound).view("datetime64[us]")) for bound in (start, stop)]
            names = ["key", "window_start", "window_end", "rows", "total"]
            note(pa.record_batch([self._keys[some], *bounds, counts[some], sums[some]], names=names))
            self._partials.pop(end - self._slices + 1, None)
        self._next = max(self._next, until)


def bare_windows(total: int, rows: int, per_second: float, slices: int, slice_us: int) -> float:
    """Run two threads that each do every step for half of the stream; returns rows per second."""

    def run(seed: int) -> None:
        states = [BareWindows(slices, slice_us) for _ in range(2)]
        for batch in event_stream(total // 2, rows, per_second, seed):
            hashes = hash_columns(batch, ("key",))
            to = (hashes & np.uint64(1)).astype(np.uint8)
            order = np.argsort(to, kind="stable")
            first = len(to) - int(to.sum())
            batch, hashes = batch.take(pa.array(order)), hashes[order]
            states[0].update(batch.slice(0, first), hashes[:first])
            states[1].update(batch.slice(first), hashes[first:])
        for state in states:
            state.close(state._next + slices)

    warm(rows)
    threads = [threading.Thread(target=run, args=(seed,)) for seed in (0, 1)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return total / (time.perf_counter() - began)
