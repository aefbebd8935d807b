"""Speed and size of the files of checkpoints, for one executor with a string key and three numeric fields.

Prints one JSON line per compression: MB/s of encoding and writing, and of reading, verifying and decoding, and the CPU
seconds of both per GB, all in bytes of uncompressed state (median of the rounds, which alternate between the
compressions). Then one line per share of keys that change between two checkpoints: bytes per checkpoint, also as a
multiple of the bytes of the changed keys, and the most files from which the state is restored.

    python benchmarks/checkpoint_files.py [--keys 1000000] [--rounds 5] [--cuts 40] [--url /data/checkpoints]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.state import StateRows, decode
from dask_elastic.topology.aggregates.field import Field

SHARDS = 256
INPUT = pa.schema({"plane": pa.string(), "delay": pa.float64()})
FIELDS = tuple(Field(name, np.dtype(kind), 0) for name, kind in (("count", "i8"), ("sum", "f8"), ("worst", "i8")))


def make_state(keys: int, rng: np.random.Generator) -> StateRows:
    """Return the state of some keys."""
    hashes = rng.integers(0, 2**64 - 1, keys, dtype=np.uint64)
    shards = (hashes % np.uint64(SHARDS)).astype(np.int32)
    planes = pa.record_batch({"plane": [f"N{number:07d}" for number in range(keys)]})
    values = [rng.integers(1, 1000, keys), rng.normal(8.0, 30.0, keys).round(2), rng.integers(-60, 1000, keys)]
    return StateRows(hashes, np.zeros(keys, np.uint64), shards, planes, FIELDS, values, np.zeros(keys, np.bool_))


def taken(state: StateRows, chosen: np.ndarray) -> StateRows:
    """Return the state of some of the keys."""
    keys = state.keys.take(pa.array(chosen))
    values = [value[chosen] for value in state.values]
    return StateRows(
        state.hashes[chosen], state.checks[chosen], state.shards[chosen], keys, FIELDS, values, state.deleted[chosen]
    )


def write(
    folder: CheckpointFolder, number: int, full: frozenset[int], state: StateRows, compression: str | None = None
) -> FileRef:
    """Write the file of one cut."""
    header = StateHeader("planes", 0, 1, SHARDS, number, full, INPUT)
    return state_file.write(folder, state_file.path_of(0, header, 1), header, [state], compression)


def speeds(folder: CheckpointFolder, state: StateRows, rounds: int) -> None:
    """Print the speed of writing and reading the whole state."""
    everything = frozenset(range(SHARDS))
    compressions = {"none": None, "lz4": "lz4", "zstd": "zstd"}
    seconds: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in compressions}
    sizes: dict[str, int] = {}
    number = 0
    for _ in range(rounds):
        for name, compression in compressions.items():
            number += 1
            times = [(time.perf_counter(), time.process_time())]
            ref = write(folder, number, everything, state, compression)
            times.append((time.perf_counter(), time.process_time()))
            for batch in state_file.read(folder, ref).batches():
                decode(batch)
            times.append((time.perf_counter(), time.process_time()))
            (write_s, write_cpu), (read_s, read_cpu) = (np.subtract(b, a).tolist() for a, b in pairwise(times))
            seconds[name].append((write_s, write_cpu, read_s, read_cpu))
            sizes[name] = ref.nbytes
            folder.delete(ref.path)
    for name, measured in seconds.items():
        write_s, write_cpu, read_s, read_cpu = map(statistics.median, zip(*measured, strict=True))
        megabytes = sizes["none"] / 1e6
        line = {
            "benchmark": "checkpoint_files",
            "keys": len(state),
            "compression": name,
            "mb": round(sizes[name] / 1e6, 1),
            "write_mb_s": round(megabytes / write_s),
            "read_mb_s": round(megabytes / read_s),
            "write_cpu_s_per_gb": round(1e3 * write_cpu / megabytes, 2),
            "read_cpu_s_per_gb": round(1e3 * read_cpu / megabytes, 2),
        }
        print(json.dumps(line), flush=True)


def increments(folder: CheckpointFolder, state: StateRows, share: float, cuts: int, rng: np.random.Generator) -> None:
    """Print the bytes of checkpoints between which a share of the keys changes."""
    live = np.bincount(state.shards, minlength=SHARDS)
    chain = Chain(SHARDS)
    sizes: list[int] = []
    files = 0
    for number in range(1, cuts + 2):
        count = len(state) if number == 1 else round(share * len(state))
        changed = np.zeros(len(state), np.bool_)
        changed[rng.choice(len(state), count, replace=False)] = True
        chain = chain.cut(number, np.bincount(state.shards[changed], minlength=SHARDS), live)
        in_full = np.isin(state.shards, [*chain.full(number)])
        ref = write(folder, number, chain.full(number), taken(state, np.flatnonzero(changed | in_full)))
        folder.delete(ref.path)
        chain = chain.written(number, ref)
        sizes.append(ref.nbytes)
        files = max(files, len(chain.files))
    line = {
        "benchmark": "checkpoint_files",
        "keys": len(state),
        "changed": share,
        "full_mb": round(sizes[0] / 1e6, 1),
        "first_mb": round(sizes[1] / 1e6, 2),
        "mean_mb": round(statistics.mean(sizes[1:]) / 1e6, 2),
        "most_mb": round(max(sizes[1:]) / 1e6, 2),
        "amplification": round(statistics.mean(sizes[1:]) / (share * sizes[0]), 2),
        "most_files": files,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--url")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    state = make_state(arguments.keys, rng)
    with tempfile.TemporaryDirectory() as temporary:
        folder = CheckpointFolder(arguments.url or temporary)
        folder.check_writable()
        speeds(folder, state, arguments.rounds)
        for share in (0.01, 0.1, 1.0):
            increments(folder, state, share, arguments.cuts, rng)


if __name__ == "__main__":
    main()
