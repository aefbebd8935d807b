"""Jobs whose computes run in one task restart from checkpoints; their savepoints continue apart, and the other way."""

from __future__ import annotations

import os
import signal
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg

RUN = {"timeout": 300, "progress": False}
AREAS, KINDS, ROWS = 40, 5, 6_000
PART = ROWS // 3
LOANS = pa.table({"area": np.arange(ROWS) * 7 % AREAS, "kind": np.arange(ROWS) % KINDS, "n": np.arange(ROWS)})
FUSED = [("kinds", "areas")]


def numbered(batch, state):
    """Count the loans of each area and kind; return each loan."""
    state.set("seen", state.get("seen") + state.grouping.sizes)
    return batch


def loans(folder, executors=2, apart=None):
    """Return own logic by area and kind, and aggregates of its rows by area, with executors of its own or not."""
    topology = de.Topology("loans")
    rows = topology.source("loans", de.sources.Push(LOANS.schema))
    keyed = rows.key_by("area", "kind")
    state = {"seen": pa.int64()}
    first = keyed.compute(numbered, state=state, name="kinds", executors=executors, shards=16, keeps=["area"])
    first.sink(de.sinks.Parquet(folder), name="out")
    totals = {"rows": agg.Count(), "most": agg.Max("n")}
    first.key_by("area").compute(totals, name="areas", executors=apart, shards=16)
    return topology


def seen(table):
    return {(row["area"], row["kind"]): row["seen"] for row in table.to_pylist()}


def totals(table):
    return {row["area"]: (row["rows"], row["most"]) for row in table.to_pylist()}


def assert_all_rows_counted_once(job, folder):
    pairs = Counter(zip(LOANS["area"].to_pylist(), LOANS["kind"].to_pylist(), strict=True))
    assert seen(job.state("kinds").to_arrow()) == pairs
    grouped = LOANS.group_by("area").aggregate([("n", "count"), ("n", "max")]).to_pylist()
    assert totals(job.state("areas").to_arrow()) == {row["area"]: (row["n_count"], row["n_max"]) for row in grouped}
    assert sorted(ds.dataset(folder, format="parquet").to_table()["n"].to_pylist()) == LOANS["n"].to_pylist()


def send(job, part):
    """Send a third of the rows, so that they are durable."""
    for start in range(part * PART, (part + 1) * PART, 200):
        job.send(LOANS.slice(start, 200))
    job.flush()


def test_savepoint_of_fused_computes_continues_apart_and_back(client, wait_until, tmp_path):
    out, savepoints = tmp_path / "out", [tmp_path / "fused", tmp_path / "apart"]
    job = de.submit(loans(out), client, fuse=FUSED, checkpoint=tmp_path / "own", checkpoint_interval="1h")
    send(job, 0)
    wait_until(lambda: pc.sum(job.state("areas").to_arrow()["rows"]).as_py() == PART, "a third is processed")
    job.stop(savepoint=savepoints[0])
    for operator, values in (("kinds", seen), ("areas", totals)):
        assert values(de.read_state(savepoints[0], operator)) == values(job.state(operator).to_arrow())
    other = {"checkpoint": tmp_path / "other", "checkpoint_interval": "1h"}
    apart = de.resume(savepoints[0], client, topology=loans(out, executors=4, apart=2), **other)
    assert set(apart.assignment()["operator"]) == {"kinds", "areas"}
    send(apart, 1)
    wait_until(lambda: pc.sum(apart.state("areas").to_arrow()["rows"]).as_py() == 2 * PART, "two thirds are processed")
    apart.stop(savepoint=savepoints[1])
    topology = loans(out, executors=1)
    again = de.resume(savepoints[1], client, topology=topology, fuse=FUSED, checkpoint=tmp_path / "last")
    assert set(again.assignment()["operator"]) == {"kinds"}
    send(again, 2)
    again.end_of_input("loans")
    again.wait(**RUN)
    assert_all_rows_counted_once(again, out)


def test_fused_computes_restart_when_their_home_is_killed(small_cluster, wait_until, tmp_path):
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(loans(out), client, fuse=FUSED, checkpoint=checkpoints, checkpoint_interval="200ms")
        send(job, 0)
        job.checkpoint()
        send(job, 1)
        job.checkpoint()
        send(job, 2)
        pids = client.run(os.getpid)
        os.kill(pids[job.assignment()["home"][0]], signal.SIGKILL)
        wait_until(lambda: job._describe().checkpoints.restarts and job.status == "running", "the job has restarted")
        job.end_of_input("loans")
        job.wait(**RUN)
        assert_all_rows_counted_once(job, out)
