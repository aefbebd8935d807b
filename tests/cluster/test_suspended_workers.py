"""Workers are suspended: no command waits for them for long, and each names them."""

from __future__ import annotations

import os
import signal
import time

import dask
import pytest
from counting_jobs import NUMBERS, RUN, SCHEMA, counting
from distributed import Client

import dask_elastic as de
from dask_elastic.vocab import errors
from dask_elastic_plugins import install

QUICK = {"elastic.heartbeat-interval": "500ms", "elastic.heartbeat-timeout": "4s"}


def test_suspended_workers_delay_neither_start_nor_failure_of_job(small_cluster, monkeypatch, slowness):
    monkeypatch.setattr(install, "PATIENCE", 1.0)
    monkeypatch.setattr(install, "PING_SECONDS", 4.0)
    monkeypatch.setattr(install, "REMOVAL_SECONDS", 1.0)
    with (
        dask.config.set(QUICK),
        Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client,
    ):
        (home, pid), (hung, other) = sorted(client.run(os.getpid).items())
        os.kill(other, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.warns(UserWarning, match=f"job 'count' runs without {hung}: no answer"):
                job = de.submit(counting(de.sources.Push(SCHEMA), executors=1), client)
            assert f"without {hung}" in repr(job)
            job.send(NUMBERS)
            job.flush()
            # No other worker watches this one.
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(errors.JobFailed, match=f"worker {home} of job 'count' does not answer"):
                job.wait(**RUN)
            with pytest.raises(errors.NodeLost, match=f"worker {home} does not answer"):
                job.state("counted").to_arrow()
            assert time.monotonic() - began < 80 * slowness()
            began = time.monotonic()
            with pytest.warns(UserWarning, match="removed from all workers but .* do not answer") as warned:
                install.uninstall(client)
            # Libraries may warn of other things.
            [message] = [text for one in warned if "removed from all workers but" in (text := str(one.message))]
            assert all(address in message for address in (home, hung))
            assert time.monotonic() - began < 80 * slowness()
        finally:
            os.kill(pid, signal.SIGCONT)
            os.kill(other, signal.SIGCONT)
