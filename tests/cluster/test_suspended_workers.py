"""Workers are suspended: submissions, reads and ends do not wait for them, and name them."""

from __future__ import annotations

import os
import signal
import time

import dask
import pytest
from counting_jobs import NUMBERS, RUN, SCHEMA, counting
from distributed import Client

import dask_elastic as de
from dask_elastic_plugins import install

QUICK = {"elastic.heartbeat-interval": "500ms", "elastic.heartbeat-timeout": "2s"}


def test_job_starts_without_suspended_worker_that_joins_when_it_continues(small_cluster, wait_until, monkeypatch):
    monkeypatch.setattr(install, "PATIENCE", 1.0)
    monkeypatch.setattr(install, "PING_SECONDS", 1.0)
    with (
        dask.config.set(QUICK),
        Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client,
    ):
        hung, pid = max(client.run(os.getpid).items())
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.warns(UserWarning, match=f"job 'count' runs without {hung}: no answer"):
                job = de.submit(counting(de.sources.Push(SCHEMA), executors=1), client)
            assert time.monotonic() - began < 25
            assert f"without {hung}" in repr(job)
            job.send(NUMBERS)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: hung in job._describe().nodes, "the worker has joined")
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").get(1)["n"] == 200
