"""A scheduler is killed, and the job resumes on a new cluster while a worker of the old one still exists."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import dask
import psutil
import pyarrow.dataset as ds
from distributed import Client

import dask_elastic as de
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic_plugins import install

sys.path.insert(0, str(Path(__file__).parent))
import doomed_cluster
from doomed_cluster import QUICK, ROWS

del sys.path[:2]

RESUMED_SECONDS = 60


def has_ended(process):
    """Whether a process has ended, or is a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def expected():
    grouped = ROWS.group_by("k").aggregate([("v", "count"), ("v", "sum"), ("v", "min"), ("v", "max")])
    return {row["k"]: (row["v_count"], row["v_sum"], row["v_min"], row["v_max"]) for row in grouped.to_pylist()}


def test_killed_scheduler_and_a_worker_of_it_that_wakes_later(small_cluster, wait_until, slowness, tmp_path):
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    doomed = subprocess.Popen([sys.executable, doomed_cluster.__file__, tmp_path], stdout=subprocess.PIPE, text=True)
    workers = []
    try:
        workers = [psutil.Process(pid) for pid in json.loads(doomed.stdout.readline())]
        catalog = Catalog(CheckpointFolder(checkpoints))
        wait_until(lambda: len(catalog.numbers()) >= 2, "two checkpoints are complete")

        def noting():
            return [worker for worker in workers if (tmp_path / "calls" / str(worker.pid)).exists()]

        # On a slow machine, the job has perhaps begun on one of them.
        sleeping, *_ = wait_until(noting, "a worker has noted rows")
        sleeping.suspend()
        doomed.kill()
        doomed.wait()
        noted = tmp_path / "calls" / str(sleeping.pid)
        with (
            dask.config.set(QUICK),
            Client(small_cluster(n_workers=1, threads_per_worker=2), set_as_default=False) as client,
        ):
            # What the worker imports takes long on a busy machine.
            install.install(client)
            began = time.monotonic()
            job = de.resume(checkpoints, client)
            wait_until(lambda: job.status == "running", "the job runs")
            assert time.monotonic() - began < RESUMED_SECONDS * slowness()
            newest = catalog.numbers()[0]
            wait_until(lambda: catalog.numbers()[0] > newest, "a new checkpoint is complete")
            before = noted.read_text().count("\n")
            sleeping.resume()
            wait_until(lambda: has_ended(sleeping), "the worker sees that its scheduler is lost")
            # A call that had begun when the process was suspended ends; no other call begins.
            assert noted.read_text().count("\n") <= before + 1
            job.wait(240, progress=False)
            table = job.state("followed").to_arrow().to_pylist()
    finally:
        for process in workers:
            # Most have ended, and their numbers may belong to other processes by now.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        doomed.kill()
        doomed.stdout.close()
        doomed.wait()
    assert {row["k"]: (row["n"], row["sum"], row["low"], row["high"]) for row in table} == expected()
    assert sum(row["faults"] for row in table) == 0
    order = [("k", "ascending"), ("seq", "ascending")]
    found = ds.dataset(out, format="parquet").to_table(columns=["k", "seq"]).sort_by(order)
    assert found.equals(ROWS.select(["k", "seq"]).sort_by(order))
    lines = [line for file in (tmp_path / "calls").iterdir() for line in file.read_text().splitlines()]
    calls = {(k, seq) for line in lines for k, seq in json.loads(line)}
    assert calls == set(zip(ROWS["k"].to_pylist(), ROWS["seq"].to_pylist(), strict=True))
