"""Windows of real jobs have one result each, also when workers are killed and the job restarts from a checkpoint."""

from __future__ import annotations

import dataclasses
import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from distributed import Client

import dask_elastic as de
from dask_elastic.topology.windowing import EventWindow, Windowing

KEYS = 20
ROWS = 16_000
SLICE, SLICES = 250_000, 4
"""Microseconds of event time of a slice, and how many an instance has."""

TABLE = pa.table(
    {
        "k": pa.array(np.arange(ROWS) % KEYS),
        "at": pa.array(np.arange(ROWS) * 1_000, pa.timestamp("us")),
    }
)


def topology(folder):
    built = de.Topology("windows")
    source = de.sources.Arrow(TABLE, rate=4_000, batch_rows=200, event_time="at")
    keyed = built.source("rows", source).key_by("k")
    counted = keyed.compute({"rows": de.aggregate.Count()}, name="counted", executors=1, shards=16)
    counted.sink(de.sinks.Parquet(folder), name="out")
    windowing = Windowing((EventWindow(0, SLICES * SLICE, SLICE),), ("at",))
    built._operators["counted"] = dataclasses.replace(built.operator("counted"), windowing=windowing)
    return built


def test_windows_close_once_when_home_and_remote_tasks_are_killed(small_cluster, wait_until, tmp_path):
    out = tmp_path / "out"
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(topology(out), client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="300ms")
        home = job.assignment()["home"][0]
        guest = next(worker for worker in client.nthreads() if worker != home)
        job.set_cores("counted", {home: 1, guest: 1})
        wait_until(lambda: job.assignment()["remote"].sum() == 1, "the executor has a remote task")
        pids = client.run(os.getpid)
        os.kill(pids[guest], signal.SIGKILL)
        wait_until(lambda: job.assignment()["remote"].sum() == 0, "the remote task has failed over")
        first = newest(job)
        wait_until(lambda: newest(job) > first, "a later checkpoint is complete")
        os.kill(pids[home], signal.SIGKILL)
        job.wait(60, progress=False)
        left = job.state("counted").to_arrow()
    emitted = ds.dataset(out, format="parquet").to_table().sort_by([("window_start", "ascending"), ("k", "ascending")])
    keys, numbers = TABLE["k"].to_numpy(), TABLE["at"].cast(pa.int64()).to_numpy() // SLICE
    slices = np.stack([np.bincount(keys[numbers == one], minlength=KEYS) for one in range(numbers[-1] + 1)])
    padded = np.concatenate([np.zeros((SLICES - 1, KEYS), int), slices, np.zeros((SLICES - 1, KEYS), int)])
    wanted = sum(padded[shift : len(padded) - SLICES + 1 + shift] for shift in range(SLICES))
    starts = np.repeat((np.arange(len(wanted)) - SLICES + 1) * SLICE, KEYS)
    assert emitted["window_start"].cast(pa.int64()).to_pylist() == starts.tolist()
    assert emitted["rows"].to_pylist() == wanted.reshape(-1).tolist()
    assert left.num_rows == 0, "slices are left behind the end"


def newest(job):
    """The newest complete checkpoint of a job."""
    taken = job.checkpoints()
    return int(taken[taken["error"].isna()]["number"].max()) if len(taken) else 0
