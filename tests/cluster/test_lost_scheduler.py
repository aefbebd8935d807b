"""A client loses its scheduler: what it calls, or waits for, raises an error that says so, at once."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from counting_jobs import NUMBERS, held
from distributed import Client

import dask_elastic as de
from dask_elastic.vocab import errors

sys.path.insert(0, str(Path(__file__).parent))
from proxy import Network


def test_calls_raise_at_once_when_scheduler_is_lost(client, wait_until, slowness):
    network = Network()
    address = network.way("client", client.scheduler.address)
    lonely = Client(address, set_as_default=False)
    with ThreadPoolExecutor(1) as threads:
        job = held(lonely)
        job.send(NUMBERS)
        waiting = threads.submit(job.wait, progress=False)
        wait_until(lambda: job.metrics()["rows"].sum() == len(NUMBERS), "the rows are processed")
        began = time.monotonic()
        network.close()
        with pytest.raises(errors.SchedulerLost, match=address):
            waiting.result(100)
        for call in (
            lambda: job.status,
            job.stop,
            job.state("counted").to_arrow,
            lambda: de.jobs(lonely),
            lambda: held(lonely),
        ):
            with pytest.raises(errors.SchedulerLost, match="submit them again"):
                call()
        assert time.monotonic() - began < 25 * slowness()
    assert de.job("held", client).status == "running"
    lonely.close()
    with pytest.raises(errors.SchedulerLost, match="the client is closed"):
        job.status  # noqa: B018
    assert repr(job).startswith("<Job held: the client is closed")
    assert job._repr_html_().startswith("<p>held: the client is closed")
    for call in (lambda: held(lonely), lambda: de.resume("anywhere", lonely)):
        with pytest.raises(errors.SchedulerLost, match=r"the client is closed.*dask_elastic\.resume\(folder, client\)"):
            call()
