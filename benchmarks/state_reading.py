"""Reading the state of a checkpoint in parts: in one pass, and each part for itself.

Prints one JSON line per way and number of parts: seconds, how often the bytes of the files were read, and by how many
MB the memory of the process grew at its peak (in a process of its own). The state is that of one executor, in a file
of all keys and some of a tenth of the keys each. Spark reads each part for itself if it has more partitions than there
were executors. A file above 16 MB is read twice: once to verify it, and once for its rows, mostly from the page cache.

    python benchmarks/state_reading.py [--keys 1000000] [--parts 1 4 16] [--runs 1] [--folder /data]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.read_state import reading_of
from dask_elastic.checkpoint.saved_state import SavedState
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.state import StateRows
from dask_elastic.topology.aggregate import Count, Sum
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.operators import Compute

SHARDS = 256
INPUT = pa.schema({"plane": pa.string(), "delay": pa.int64()})
PLANES = Compute("planes", ("plane",), {"flights": Count(), "delay": Sum("delay")})
FIELDS = Bundle(PLANES.aggregates, INPUT).fields


def make_rows(numbers: np.ndarray) -> StateRows:
    """Return the state of keys."""
    hashes = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    planes = pa.record_batch({"plane": pa.array(numbers).cast(pa.string())})
    values = [np.ones(len(numbers), field.dtype) for field in FIELDS]
    shards = (hashes >> np.uint64(56)).astype(np.int32)
    return StateRows(hashes, np.zeros_like(hashes), shards, planes, FIELDS, values, np.zeros(len(numbers), np.bool_))


def write_checkpoint(url: str, keys: int) -> None:
    """Write a checkpoint whose chain has a full file and five with changes."""
    folder = CheckpointFolder(url)
    rng = np.random.default_rng(0)
    chain = Chain(SHARDS)
    live = None
    for number in range(1, 7):
        rows = make_rows(np.arange(keys) if number == 1 else rng.choice(keys, keys // 10, replace=False))
        counts = np.bincount(rows.shards, minlength=SHARDS)
        live = counts if live is None else live
        chain = chain.cut(number, counts, live)
        header = StateHeader("planes", 0, 1, SHARDS, number, chain.full(number), INPUT)
        chain = chain.written(number, state_file.write(folder, state_file.path_of(0, header, 1), header, [rows]))
    state = OperatorState("planes", ("plane",), 1, SHARDS, (chain.at(6),), reading_of(PLANES))
    topology = folder.write("topology/1.pickle", [b"none"])
    Catalog(folder).publish(Manifest("planes", 6, 1, 1.0, 2.0, topology, {"planes": "compute"}, (state,)))


def read(url: str, parts: int, one_pass: bool) -> tuple[float, float, int]:
    """Return the seconds of reading all parts, by how many MB the process grew, and the bytes that were read."""
    saved = SavedState.open(url, "planes")
    before, nbytes = _peak_mb(), _bytes_read()
    start = time.perf_counter()
    ranges = [range(parts)] if one_pass else [range(part, part + 1) for part in range(parts)]
    rows = sum(table.num_rows for some in ranges for table in saved.scan(some, parts))
    seconds = time.perf_counter() - start
    assert rows, "the checkpoint has no state"
    return seconds, _peak_mb() - before, _bytes_read() - nbytes


def _peak_mb() -> float:
    # Unlike `getrusage`, without the peak of the process that has started this one.
    return _number("status", "VmHWM") / 1024


def _bytes_read() -> int:
    return _number("io", "rchar")


def _number(file: str, name: str) -> int:
    lines = Path("/proc/self", file).read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    # Each measurement has a process of its own: the peak of a process's memory never falls.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        write_checkpoint(folder, arguments.keys)
        total = sum(file.nbytes for file in SavedState.open(folder, "planes").state.chains[0].files)
        for parts in arguments.parts:
            for one_pass in (True, False):
                found = []
                for _ in range(arguments.runs):
                    with context.Pool(1) as pool:
                        found.append(pool.apply(read, (folder, parts, one_pass)))
                seconds, grown, nbytes = map(statistics.median, zip(*found, strict=True))
                line = {
                    "benchmark": "state_reading",
                    "keys": arguments.keys,
                    "mb": round(total / 1e6, 1),
                    "parts": parts,
                    "way": "one pass" if one_pass else "each part for itself",
                    "seconds": round(seconds, 2),
                    "times_read": round(nbytes / total, 1),
                    "grown_mb": round(grown),
                }
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
