"""Rows per second of joins of two streams, compared with a bare loop of pandas over the same batches.

Both streams have `--rows` rows with 10,000 keys in the order of their times. The interval join pairs rows at most
`--within` seconds apart; the bare loop keeps the rows of that time in frames, and merges each batch with those of the
other side. Prints one JSON line for each kind: the medians of the runs, which alternate, and their ratio.

    python benchmarks/joins.py [--rows 1000000] [--runs 3] [--batch 65536] [--within 20] [--kind inner]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import pandas as pd
import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de

KEYS = 10_000
PER_SECOND = 1_000
"""Rows of each stream within a second of event time."""

KINDS = ("inner", "outer", "asof")


def side(rows: int, seed: int, value: str) -> pa.Table:
    """Return one of the streams."""
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, rows * 1_000_000 // PER_SECOND, rows))
    return pa.table(
        {"key": random.integers(0, KEYS, rows), "at": pa.array(times, pa.timestamp("us")), value: random.random(rows)}
    )


def bare_interval(left: pa.Table, right: pa.Table, batch: int, within: float) -> int:
    """Join batch by batch with pandas, and drop what is too old; returns the number of pairs."""
    limit, pairs = pd.Timedelta(seconds=within), 0
    buffers = [[], []]
    frames = [[part.to_pandas() for part in table.to_batches(max_chunksize=batch)] for table in (left, right)]
    for parts in zip(*frames, strict=True):
        for number, part in enumerate(parts):
            others = buffers[1 - number]
            if others:
                found = part.merge(pd.concat(others), on="key", suffixes=("", "_other"))
                pairs += int(((found["at"] - found["at_other"]).abs() <= limit).sum())
            buffers[number].append(part)
        reached = min(part["at"].iloc[-1] for part in parts) - limit
        buffers = [[kept for kept in buffer if kept["at"].iloc[-1] >= reached] for buffer in buffers]
    return pairs


def bare_asof(left: pa.Table, right: pa.Table) -> int:
    """Join all rows at once with pandas; returns the number of results."""
    return len(pd.merge_asof(left.to_pandas(), right.to_pandas(), on="at", by="key"))


def engine(
    client: Client, left: pa.Table, right: pa.Table, options: argparse.Namespace, kind: str
) -> tuple[int, float]:
    """Run a job; returns the number of results and the seconds."""
    topology = de.Topology("joins")
    sides = [
        topology.source(name, de.sources.Arrow(table, event_time="at", batch_rows=options.batch)).key_by("key")
        for name, table in (("left", left), ("right", right))
    ]
    if kind == "asof":
        joined = sides[0].join_asof(sides[1], name="joined")
    else:
        joined = sides[0].join(sides[1], within=options.within, how=kind, name="joined")
    # Counting per batch costs next to nothing, and needs no memory for the results.
    joined.map(lambda batch: {"rows": [batch.num_rows]}, name="counted").sink(de.sinks.Collect(), name="out")
    began = time.perf_counter()
    job = de.submit(topology, client)
    job.wait(timeout=600, progress=False)
    seconds = time.perf_counter() - began
    return int(sum(job.collect("out")["rows"].to_pylist())), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--within", type=float, default=20)
    parser.add_argument("--kind", choices=KINDS)
    options = parser.parse_args()
    left, right = side(options.rows, 0, "a"), side(options.rows, 1, "b")
    cluster = LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None, processes=False)
    with cluster, Client(cluster) as client:
        for kind in [options.kind] if options.kind else KINDS:
            took: dict[str, list[float]] = {"engine": [], "bare": []}
            counts = {}
            for _ in range(options.runs):
                counts["engine"], seconds = engine(client, left, right, options, kind)
                took["engine"].append(seconds)
                began = time.perf_counter()
                bare = (
                    bare_asof(left, right)
                    if kind == "asof"
                    else bare_interval(left, right, options.batch, options.within)
                )
                counts["bare"] = bare
                took["bare"].append(time.perf_counter() - began)
            rates = {name: 2 * options.rows / statistics.median(seconds) for name, seconds in took.items()}
            result = {"kind": kind, "results": counts, **{name: round(rate) for name, rate in rates.items()}}
            print(json.dumps({**result, "ratio": round(rates["engine"] / rates["bare"], 2)}), flush=True)


if __name__ == "__main__":
    main()
