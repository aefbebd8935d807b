"""A join on a real cluster: moved to another worker and back, and through the loss of that worker."""

from __future__ import annotations

import os
import signal

import numpy as np
import pandas as pd
import pyarrow as pa
from distributed import Client

import dask_elastic as de

KEYS = 50
ROWS = 4_000


def side(seed: int, value: str) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "key": [f"k{key}" for key in random.integers(0, KEYS, ROWS).tolist()],
            "at": pa.array(np.sort(random.integers(0, 1_000_000, ROWS)), pa.timestamp("ms")),
            value: pa.array(np.arange(ROWS)),
        }
    )


def expected(left: pa.Table, right: pa.Table) -> pd.DataFrame:
    pairs = left.to_pandas().merge(right.to_pandas(), on="key", suffixes=("", "_right"))
    pairs = pairs[(pairs["at_right"] - pairs["at"]).dt.total_seconds().between(-5, 10)]
    alone = left.to_pandas()
    alone = alone[~alone["a"].isin(pairs["a"])]
    return pd.concat([pairs[["a", "b"]], alone[["a"]].assign(b=-1)]).sort_values(["a", "b"], ignore_index=True)


def test_join_on_killed_guest_emits_each_result_once(small_cluster, wait_until):
    left, right = side(0, "a"), side(1, "b")
    cluster = small_cluster(n_workers=1, threads_per_worker=2)
    with Client(cluster, set_as_default=False) as client:
        topology = de.Topology("joined")
        sources = [
            topology.source(name, de.sources.Push(table.schema, event_time="at")).key_by("key")
            for name, table in (("left", left), ("right", right))
        ]
        joined = sources[0].join(sources[1], within=("-5s", "10s"), how="left", name="joined", executors=1)
        joined.sink(de.sinks.Collect(), name="out")
        job = de.submit(topology, client, watermark_interval="10ms", flush_interval="50ms", idle_timeout=None)
        [home] = client.nthreads()
        cluster.scale(2)
        wait_until(lambda: len(job._describe().nodes) == 2, "a guest has joined", timeout=120)
        guest = next(address for address in job._describe().nodes if address != home)
        job.set_cores("joined", {home: 1, guest: 1})
        wait_until(lambda: job.assignment()["remote"].any(), "the guest has a task")
        quarters = range(0, ROWS, ROWS // 4)
        for number, start in enumerate(quarters):
            for name, table in (("left", left), ("right", right)):
                job.send(table.slice(start, ROWS // 4), name)
            if number == 1:
                wait_until(lambda: job.metrics()["rows"].sum() > ROWS // 2, "rows flow")
                os.kill(client.run(os.getpid)[guest], signal.SIGKILL)
        job.drain(timeout=200)
        found = job.collect("out").select(["a", "b"]).to_pandas().fillna(-1).astype("int64")
        found = found.sort_values(["a", "b"], ignore_index=True)
        pd.testing.assert_frame_equal(found, expected(left, right).astype("int64"))
        assert job.state("joined").to_arrow().num_rows == 0
        job.forget()
