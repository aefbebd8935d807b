"""Rows per second of a count and a sum per key, with the state in memory and on disk, hot and cold.

The files' pages are evicted from the page cache whenever they exceed the limit, so that reads come from the disk as on
a machine with no more memory. Prints one JSON line per case.

    python benchmarks/state_on_disk.py [--limit 16] [--seconds 3] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

import numpy as np
import psutil
import pyarrow as pa

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state import KeyedStore
from dask_elastic.state.disk import DiskStorage, UnnamedFiles
from dask_elastic.topology.aggregates.field import Field

BYTES_PER_KEY = 80
FIELDS = (Field("count", np.dtype(np.int64)), Field("sum", np.dtype(np.float64)))
LOADED = 65_536


class Case:
    """A store with a number of keys."""

    def __init__(self, folder: str | None, keys: int, limit: int) -> None:
        process = psutil.Process()
        self.keys, self.limit = keys, limit
        self.files = None
        self.store = KeyedStore(64, lambda hashes: (hashes % np.uint64(64)).astype(np.intp), track_dirty=True)
        if folder is not None:
            self.files = UnnamedFiles(folder, lambda: process.memory_info().shared, max(limit, 16 << 20))
            self.store.move(DiskStorage(self.files))
        self.store.declare(pa.schema({"k": pa.int64()}), FIELDS)
        for shard in range(64):
            self.store.grant(shard, 0)
        self.session = self.store.session(0)
        self.random = np.random.default_rng(1)

    def process(self, keys: np.ndarray) -> None:
        """Count the rows of a batch."""
        rows = pa.record_batch({"k": keys})
        located = self.session.locate(rows, ["k"], hash_columns(rows, ["k"]))
        sizes = located.grouping.sizes
        self.session.apply(located, lambda current: [current[0] + sizes, current[1] + 1.5 * sizes])

    def evict(self) -> None:
        """Evict the pages of all files if they exceed the limit; what is dirty is written to the disk first."""
        if self.files is None or self.files.nbytes <= self.limit:
            return
        self.files.unmap()
        for file in self.files._files():
            os.fdatasync(file._descriptor)
            os.posix_fadvise(file._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def draw(self, rows: int, zipf: bool) -> np.ndarray:
        """Return keys at random, with Zipf's distribution of exponent 1 if asked."""
        if not zipf:
            return self.random.integers(0, self.keys, rows)
        ranks = np.exp(self.random.random(rows) * np.log(self.keys)).astype(np.int64) - 1
        return ranks * 2_654_435_761 % self.keys

    def run(self, rows: int, zipf: bool, seconds: float) -> float:
        """Return rows per second."""
        done, since, spent = 0, 0, 0.0
        while spent < seconds:
            keys = self.draw(rows, zipf)
            began = time.perf_counter()
            self.process(keys)
            since += rows
            if since >= LOADED:
                self.evict()
                since = 0
            spent += time.perf_counter() - began
            done += rows
        return done / spent


def main() -> None:
    """Run and print all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=16, help="MiB of files that stay cached")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    given = parser.parse_args()
    limit = given.limit << 20
    for share in (0.3, 10):
        keys = int(share * limit / BYTES_PER_KEY)
        for where in ("memory", "disk"):
            case = Case(None if where == "memory" else given.folder, keys, limit)
            began = time.perf_counter()
            for start in range(0, keys, LOADED):
                case.process(np.arange(start, min(keys, start + LOADED)))
                case.evict()
            loaded = keys / (time.perf_counter() - began)
            for rows in (65_536, 1_024):
                for zipf in (False, True):
                    rate = case.run(rows, zipf, given.seconds)
                    found = {"state_by_limit": share, "keys": keys, "store": where, "batch": rows, "zipf": zipf}
                    print(json.dumps({**found, "rows_per_s": round(rate), "new_keys_per_s": round(loaded)}), flush=True)


if __name__ == "__main__":
    main()
