"""Rows whose keys are skewed to the shards of one worker, then to those of the other; and how long each row waited."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace

SHARDS = 12
BATCH_SECONDS = 0.02

PLACING = 4.0
"""Seconds before the first row: shards are given to both workers while they have no state."""

KEYS_COME = 0.75
"""The part of the warming in which all keys come once; the rows after that are as those that are measured."""

Rates = npt.NDArray[np.float64]
"""The rate of each shard, as a multiple of the first one."""


@dataclass
class Skew:
    """How the rates of shards change: to some goals each time, which they reach gradually.

    Parameters
    ----------
    rise : float
        Seconds in which the rates change.
    """

    rise: float
    _changes: list[tuple[float, Rates]] = field(default_factory=list)

    def change(self, at: float, goals: Rates) -> None:
        """Let the rates change from a time on."""
        self._changes.append((at, goals))

    def rates(self, at: float) -> Rates:
        """Return the rates at a time."""
        rates = np.ones(SHARDS)
        for number, (began, goals) in enumerate(self._changes):
            until = self._changes[number + 1][0] if number + 1 < len(self._changes) else at
            rates = rates + (goals - rates) * min(max(min(at, until) - began, 0.0) / self.rise, 1.0)
        return rates


_skew = Skew(1.0)
_notes: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"rows": [], "results": []}
_lock = threading.Lock()


def begin_skew(rise: float) -> None:
    """Let all shards in this process have equal rates, and later changes take some seconds."""
    global _skew
    _skew = Skew(rise)


def change_skew(at: float, goals: Sequence[float]) -> None:
    """Let the rates of shards in this process change."""
    _skew.change(at, np.array(goals))


def keyed_rows(seconds: float, warm: float, rate: float, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield every key once in the first part of the warming, then random keys by the rates of their shards."""
    random = np.random.default_rng(0)
    every = np.arange(int(SHARDS * keys * 1.1))
    shard = KeySpace(1, SHARDS).shard_of(hash_columns(pa.record_batch({"key": every}), ("key",)))
    of_shard = np.stack([every[shard == number][:keys] for number in range(SHARDS)])
    first = np.array_split(random.permutation(of_shard.ravel()), int(warm * KEYS_COME / BATCH_SECONDS))
    began = time.time() + PLACING
    for number in range(int((warm + seconds) / BATCH_SECONDS)):
        at = number * BATCH_SECONDS
        if number < len(first):
            chosen = first[number]
        else:
            rates = _skew.rates(began + at)
            count = round(rate * BATCH_SECONDS * rates.mean())
            chosen = of_shard[random.choice(SHARDS, count, p=rates / rates.sum()), random.integers(0, keys, count)]
        time.sleep(max(0.0, began + at - time.time()))
        # Rows are served when all keys have come.
        due = np.full(len(chosen), began + at if number >= len(first) else np.nan)
        now = pa.array(np.full(len(chosen), int((began + at) * 1e6)), pa.timestamp("us"))
        yield pa.record_batch({"key": chosen, "value": chosen.astype(float), "due": due, "at": now})


@dataclass(frozen=True)
class Served:
    """The value of rows, after the time that each of them is served; their latencies are recorded.

    Parameters
    ----------
    seconds : float
        Seconds for each row.
    is_slept : bool
        Whether the thread sleeps, as if it had a core of its own; else it keeps a core busy.
    """

    seconds: float
    is_slept: bool

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the values when the rows are served."""
        due = batch["due"].to_numpy()
        served = self.seconds * np.count_nonzero(~np.isnan(due))
        if served and self.is_slept:
            time.sleep(served)
        elif served:
            until, numbers = time.thread_time() + served, np.arange(2000)[::-1]
            while time.thread_time() < until:
                # Without the GIL for the most part, as aggregates.
                np.sort(numbers)
        _note("rows", due, time.time())
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
