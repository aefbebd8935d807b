"""A program that runs a job with checkpoints on a cluster of its own until it is killed.

Takes the folder of the job, and prints the process of each worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import dask
from distributed import Client, LocalCluster

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import STATE, following, numbered_rows

ROWS = numbered_rows(24_000, keys=100)
QUICK = {"elastic.heartbeat-interval": "500ms", "elastic.heartbeat-timeout": "1500ms"}


def topology(folder: Path) -> de.Topology:
    """A topology with state, files, and a function that notes, in a line per call, its process and its rows."""
    made = de.Topology("doomed")

    def note(batch) -> None:
        rows = zip(batch["k"].to_pylist(), batch["seq"].to_pylist(), strict=True)
        with (folder / "calls" / str(os.getpid())).open("a") as file:
            file.write(json.dumps([*rows]) + "\n")

    rows = made.source("rows", de.sources.Arrow(ROWS, rate=3_000, batch_rows=300))
    out = rows.key_by("k").compute(following(), name="followed", state=STATE, executors=2, shards=16)
    out.sink(de.sinks.Parquet(folder / "out"), name="out")
    out.sink(de.sinks.Call(note), name="calls")
    return made


def main() -> None:
    """Run it."""
    folder = Path(sys.argv[1])
    (folder / "calls").mkdir()
    with (
        dask.config.set(QUICK),
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None, silence_logs="CRITICAL") as cluster,
        Client(cluster) as client,
    ):
        de.submit(topology(folder), client, checkpoint=folder / "checkpoints", checkpoint_interval="300ms")
        print(json.dumps([*client.run(os.getpid).values()]), flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    main()
