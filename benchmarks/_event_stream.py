"""The stream of `windows.py`: rows in the order of event time with integer keys, and bare loops over its windows."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state.index import make_index

KEYS = 10_000
DISTINCT_BATCHES = 12

STARTED: list[float] = []
"""Start time of each stream that this process has read."""
EMITTED: list[tuple[int, int]] = []
"""For each batch of results: results, and rows that they count."""


@functools.cache
def columns(rows: int, seed: int, keys: int = KEYS) -> list[tuple[pa.Array, pa.Array]]:
    """Return keys and values of some batches, which a source repeats."""
    rng = np.random.default_rng(seed)
    return [(pa.array(rng.integers(0, keys, rows)), pa.array(rng.normal(size=rows))) for _ in range(DISTINCT_BATCHES)]


def event_stream(total: int, rows: int, per_second: float, seed: int = 0, keys: int = KEYS) -> Iterator[pa.RecordBatch]:
    """Yield `total` rows in batches of `rows`, `per_second` of them for each second of event time."""
    made = columns(rows, seed, keys)
    within = (np.arange(rows) * (1e6 / per_second)).astype(np.int64)
    STARTED.append(time.time())
    for number in range(total // rows):
        keys, values = made[number % len(made)]
        times = (within + int(number * rows * 1e6 / per_second)).view("datetime64[us]")
        yield pa.record_batch([keys, values, pa.array(times)], names=["key", "value", "at"])


def warm(rows: int, keys: int = KEYS) -> None:
    """Make the batches of later streams, and forget what was noted of earlier ones."""
    for seed in (0, 1):
        columns(rows, seed, keys)
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


class GroupbyWindows:
    """What most would write with pandas: a `groupby` for each batch, and a dict with the partials of each slice."""

    def __init__(self, slices: int, slice_us: int):
        self._slices = slices
        self._slice_us = slice_us
        self._partials: dict[int, pd.DataFrame] = {}
        self._next = 0

    def update(self, keys: np.ndarray, values: np.ndarray, times: np.ndarray) -> None:
        """Add a batch, then emit the instances that end before its newest row."""
        frame = pd.DataFrame({"slice": times // self._slice_us, "key": keys, "value": values})
        found = frame.groupby(["slice", "key"])["value"].agg(["count", "sum"])
        for number in found.index.unique("slice"):
            part = found.loc[number]
            before = self._partials.get(number)
            self._partials[number] = part if before is None else before.add(part, fill_value=0)
        self.close(int(times.max()) // self._slice_us)

    def close(self, until: int) -> None:
        """Emit the instances that end with a slice before `until`."""
        for end in range(self._next, until):
            parts = [self._partials[n] for n in range(end - self._slices + 1, end + 1) if n in self._partials]
            if parts:
                total = pd.concat(parts).groupby(level=0).sum() if len(parts) > 1 else parts[0]
                columns = total.index.to_numpy(), total["count"].to_numpy(np.int64), total["sum"].to_numpy()
                note(_results(columns[0], end, self._slices, self._slice_us, *columns[1:]))
            self._partials.pop(end - self._slices + 1, None)
        self._next = max(self._next, until)


class FactorizedWindows:
    """What an expert would write: count and sum per key and slice in arrays, of keys that are not known before.

    `pandas.factorize` finds the distinct keys of a batch, an index of pandas their places; a dict has the partials of
    each slice, and an instance is the sum of its slices.
    """

    def __init__(self, slices: int, slice_us: int):
        self._known = pd.Index(np.empty(0, np.int64))
        self._slices = slices
        self._slice_us = slice_us
        self._partials: dict[int, list[np.ndarray]] = {}
        self._next = 0

    def update(self, keys: np.ndarray, values: np.ndarray, times: np.ndarray) -> None:
        """Add a batch, then emit the instances that end before its newest row."""
        codes, uniques = pd.factorize(keys)
        places = self._known.get_indexer(uniques)
        missing = np.flatnonzero(places < 0)
        places[missing] = np.arange(len(self._known), len(self._known) + len(missing))
        if len(missing):
            self._known = self._known.append(pd.Index(uniques[missing]))
        places, count = places[codes], len(self._known)
        numbers = times // self._slice_us
        first, last = int(numbers.min()), int(numbers.max())
        for number in range(first, last + 1):
            chosen = slice(None) if first == last else numbers == number
            of_slice = places[chosen]
            new = np.bincount(of_slice, minlength=count), np.bincount(of_slice, values[chosen], count)
            before = self._partials.get(number)
            self._partials[number] = (
                [*new] if before is None else [_added(*pair) for pair in zip(before, new, strict=True)]
            )
        self.close(last)

    def close(self, until: int) -> None:
        """Emit the instances that end with a slice before `until`."""
        for end in range(self._next, until):
            self._emit(end)
            self._partials.pop(end - self._slices + 1, None)
        self._next = max(self._next, until)

    def _emit(self, end: int) -> None:
        parts = [self._partials[n] for n in range(end - self._slices + 1, end + 1) if n in self._partials]
        if not parts:
            return
        counts, sums = (functools.reduce(_added, column) for column in zip(*parts, strict=True))
        some = np.flatnonzero(counts)
        note(_results(self._known.to_numpy()[some], end, self._slices, self._slice_us, counts[some], sums[some]))


def _added(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the sum of two arrays; the shorter one is of a time with fewer keys."""
    short, long = sorted((one, other), key=len)
    total = long.copy()
    total[: len(short)] += short
    return total


def _results(
    keys: np.ndarray, end: int, slices: int, slice_us: int, counts: np.ndarray, sums: np.ndarray
) -> pa.RecordBatch:
    bounds = [np.full(len(keys), bound * slice_us).view("datetime64[us]") for bound in (end + 1 - slices, end + 1)]
    names = ["key", "window_start", "window_end", "rows", "total"]
    return pa.record_batch([keys, *map(pa.array, bounds), counts, sums], names=names)


def bare_windows(
    make: type[GroupbyWindows | FactorizedWindows], total: int, rows: int, per_second: float, slices: int, slice_us: int
) -> float:
    """Run two threads, each for half of the keys of the engine's stream; returns rows per second."""

    def run(mine: int) -> None:
        state = make(slices, slice_us)
        for batch in event_stream(total, rows, per_second):
            keys = batch["key"].to_numpy()
            chosen = np.flatnonzero((pd.util.hash_array(keys) & np.uint64(1)) == mine)
            values, times = batch["value"].to_numpy(), batch["at"].to_numpy().view(np.int64)
            state.update(keys[chosen], values[chosen], times[chosen])
        state.close(state._next + slices)

    return _timed(run, total, rows)


class LeanWindows:
    """Count and sum per key and slice in plain NumPy, with the number of keys given and this project's hash index."""

    def __init__(self, slices: int, slice_us: int):
        self._index = make_index()
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
            note(_results(self._keys[some], end, self._slices, self._slice_us, counts[some], sums[some]))
            self._partials.pop(end - self._slices + 1, None)
        self._next = max(self._next, until)


def lean_windows(total: int, rows: int, per_second: float, slices: int, slice_us: int) -> float:
    """Run two threads that each do every step for half of the stream; returns rows per second.

    Their results are of their halves, and not brought together.
    """

    def run(seed: int) -> None:
        states = [LeanWindows(slices, slice_us) for _ in range(2)]
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

    return _timed(run, total, rows)


def _timed(run: Callable[[int], None], total: int, rows: int) -> float:
    """Run two threads; returns rows per second."""
    warm(rows)
    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return total / (time.perf_counter() - began)
