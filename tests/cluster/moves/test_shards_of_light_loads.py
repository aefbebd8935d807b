"""Cores on other workers get shards of an executor when its load needs them, and give them back."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

import dask_elastic as de

SCHEMA = pa.schema({"key": pa.int64(), "busy": pa.float64()})
STATE = {"n": pa.int64()}
LIGHT = 0.2
"""Busy cores."""


def busy_for(batch, state):
    """Count rows per key; keep the core busy for the seconds that they ask for."""
    until = time.monotonic() + batch["busy"].to_numpy().sum()
    while time.monotonic() < until:
        pass
    state.set("n", state.get("n", default=0) + np.bincount(state.ordinals, minlength=len(state.keys)))


def rows(busy):
    return pa.table({"key": np.arange(100), "busy": np.full(100, busy / 100)}, schema=SCHEMA)


def test_remote_core_has_shards_while_the_load_is_not_light(client, wait_until):
    topology = de.Topology("light")
    keyed = topology.source("rows", de.sources.Push(SCHEMA)).key_by("key")
    keyed.compute(busy_for, state=STATE, name="counted", executors=1, shards=16)
    job = de.submit(topology, client, cores={"counted": 1}, light_load=LIGHT, latency_target=None)
    home = job.assignment()["home"][0]
    job.set_cores("counted", {home: 1, next(worker for worker in client.nthreads() if worker != home): 1})
    sent = 0
    for _ in range(10):
        job.send(rows(0.0), "rows")
        sent += 100

    def processed():
        metrics = job.metrics()
        return metrics.to_dict("records") if metrics["rows"].sum() == sent else None

    [first] = wait_until(processed, "the first rows are processed")
    # If the process pauses during a batch, the batch keeps a core busy.
    assert first["moves"] == 0 or first["busy"] > LIGHT

    def is_spread():
        nonlocal sent
        job.send(rows(0.1), "rows")
        sent += 100
        assigned = job.assignment()
        return any(assigned.loc[assigned["remote"], "shards"].tolist())

    wait_until(is_spread, "shards have moved to the other worker")

    def is_home():
        nonlocal sent
        job.send(rows(0.0), "rows")
        sent += 100
        assigned = job.assignment()
        return not any(assigned.loc[assigned["remote"], "shards"].tolist())

    wait_until(is_home, "shards have come home")
    job.end_of_input("rows")
    job.wait(timeout=200, progress=False)
    assert job.state("counted").to_pandas()["n"].sum() == sent
