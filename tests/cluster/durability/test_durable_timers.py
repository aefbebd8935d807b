"""Timers of real jobs fire once, also when workers are killed and the job restarts from a checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from distributed import Client

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parent))
from followed_jobs import Gated, newest

sys.path.pop(0)

KEYS = 20
ROWS = 16_000
CLOSES_AFTER = 500_000
"""Microseconds of event time from a key's first row to its timer."""

TABLE = pa.table(
    {
        "k": pa.array(np.arange(ROWS) % KEYS),
        "at": pa.array(np.arange(ROWS) * 1_000, pa.timestamp("us")),
    }
)
STATE = {"rows": pa.int64(), "polls": pa.int64()}


def count(batch, state):
    """Count the rows of each key; the first one sets the timer that closes the count."""
    rows = state.get("rows") + state.grouping.sizes
    state.set("rows", rows)
    state.timers.set("close", batch["at"].to_numpy()[state.first] + CLOSES_AFTER, where=rows == state.grouping.sizes)
    idle = np.isnat(state.timers.get("poll"))
    state.timers.set("poll", np.full(len(state), state.now + 0.1), where=idle)


def close(batch, state):
    """Emit the count of each key, and begin again."""
    rows = state.get("rows").copy()
    state.set("rows", np.zeros(len(state), np.int64))
    return batch.append_column("rows", pa.array(rows)).append_column("poll", pa.array(np.zeros(len(state), np.int64)))


def poll(batch, state):
    """Emit how often the timer in processing time has fired."""
    polls = state.get("polls") + 1
    state.set("polls", polls)
    return batch.append_column("rows", pa.array(np.zeros(len(state), np.int64))).append_column("poll", pa.array(polls))


def topology(folder, gate):
    built = de.Topology("timers")
    source = Gated(TABLE, gate, rate=4_000, batch_rows=200, event_time="at")
    timers = {"close": de.Timer(close), "poll": de.Timer(poll, clock="processing")}
    keyed = built.source("rows", source).key_by("k")
    keyed.compute(count, state=STATE, timers=timers, name="counted", executors=1, shards=16).sink(
        de.sinks.Parquet(folder), name="out"
    )
    return built


def test_timers_fire_once_when_home_and_remote_tasks_are_killed(small_cluster, wait_until, tmp_path):
    out, gate = tmp_path / "out", tmp_path / "gate"
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(topology(out, gate), client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="300ms")
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
        gate.touch()
        job.wait(240, progress=False)
    state = de.read_state(tmp_path / "checkpoints", "counted").to_pandas()
    emitted = ds.dataset(out, format="parquet").to_table().to_pandas()
    closed, polled = emitted[emitted["poll"] == 0], emitted[emitted["poll"] > 0]
    assert not closed.duplicated(["k", "due"]).any()
    assert closed.groupby("k")["rows"].sum().to_dict() == dict.fromkeys(range(KEYS), ROWS // KEYS)
    assert (state["rows"] == 0).all()
    assert Counter(polled["k"]) == dict(zip(state["k"], state["polls"], strict=True))
    assert polled.groupby("k")["poll"].max().to_dict() == dict(zip(state["k"], state["polls"], strict=True))
