"""State that grows: how long a batch of new keys takes at most, and how long another task of the store waits meanwhile.

A task adds keys to a store in batches, with all fields of their state, and another one updates 64 keys of its own all
the time. Arrays are either reserved, as in the workers of a job, and extended where they are, or copied to longer ones
when they are full. Both alternate, each in a process of its own.

Prints one JSON line for each size, with medians of the runs: processor time of a batch (median, 99 %, longest), the
longest wait of the other task between two updates, and the most memory that the process had beyond that at the start.

    python benchmarks/state_growth.py [--fields 2 16 128] [--keys 2000000 1000000 400000] [--batch 500] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pyarrow as pa

from dask_elastic.state import KeyedStore
from dask_elastic.topology.aggregates.field import Field

SHARDS = 16
ADDRESS_SPACE = 16 << 30
PAUSE = 0.0002


def shard_of(hashes: np.ndarray) -> np.ndarray:
    """Return the shard of each hash."""
    return (hashes % np.uint64(SHARDS)).astype(np.intp)


def hashes_of(keys: np.ndarray, task: int) -> np.ndarray:
    """Return hashes whose shards the task has."""
    spread = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return spread // np.uint64(SHARDS) * np.uint64(SHARDS) + np.uint64(task)


def peak() -> float:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def grown(fields: int, count: int, size: int, reserved: bool) -> dict[str, float]:
    """Add the keys; returns what is printed."""
    store = KeyedStore(SHARDS, shard_of, threading.Lock)
    store.address_space = ADDRESS_SPACE if reserved else 0
    store.declare(pa.schema({"key": pa.int64()}), [Field(f"f{number}", np.dtype(float)) for number in range(fields)])
    for shard in range(SHARDS):
        store.grant(shard, shard % 2)
    gaps: list[float] = []
    done = threading.Event()

    def update(task: int, keys: np.ndarray) -> None:
        located = session[task].locate(pa.record_batch({"key": keys}), ["key"], hashes_of(keys, task))
        session[task].apply(located, lambda current: [column + 1 for column in current])

    def other() -> None:
        keys, last = np.arange(64), time.perf_counter()
        while not done.is_set():
            update(0, keys)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
            time.sleep(PAUSE)

    session = [store.session(task) for task in range(2)]
    update(0, np.arange(64))
    before = peak()
    thread = threading.Thread(target=other)
    thread.start()
    took = []
    for first in range(0, count, size):
        began = time.thread_time()
        update(1, np.arange(first, first + size))
        took.append(time.thread_time() - began)
    done.set()
    thread.join()
    batch = np.array(took) * 1e3
    found = {"p50_ms": np.median(batch), "p99_ms": np.quantile(batch, 0.99), "longest_ms": batch.max()}
    return {**found, "others_longest_ms": max(gaps) * 1e3, "peak_mb": peak() - before}


def in_process(*arguments: int | bool) -> dict[str, float]:
    """Run in a new process, whose peak of memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(grown, *arguments).result()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", type=int, nargs="+", default=[2, 16, 128])
    parser.add_argument("--keys", type=int, nargs="+", default=[2_000_000, 1_000_000, 400_000])
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    for fields, keys in zip(given.fields, given.keys, strict=True):
        runs: dict[str, list[dict[str, float]]] = {"copied": [], "reserved": []}
        for _ in range(given.runs):
            for name, found in runs.items():
                found.append(in_process(fields, keys, given.batch, name == "reserved"))
        for name, found in runs.items():
            medians = {key: round(statistics.median(run[key] for run in found), 2) for key in found[0]}
            print(json.dumps({"benchmark": "state-growth", "fields": fields, "keys": keys, "arrays": name, **medians}))


if __name__ == "__main__":
    main()
