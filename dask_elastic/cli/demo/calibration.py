"""The calibration: a trial of one job, fed as later, shows what this machine bears."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # distributed depends on it
import pyarrow as pa
from distributed import Client

from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.flight_delays import build
from dask_elastic.cli.demo.load import TRIAL_RATE, Load, Machine
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.submit import submit
from dask_elastic.runtime.protocol.job_calls import Describe

JOB = "calibration"

LOOK_SECONDS = 0.5


def calibrate(client: Client, feed: Feed, flights: pa.Table, options: dict[str, Any], updates: Path) -> Machine:
    """Run one job at the trial's rate, and measure.

    Parameters
    ----------
    client : Client
        A client of a cluster with free slots.
    feed : Feed
        Brings the flights into the job.
    flights : Table
        A few seconds of flights.
    options : dict
        Options of the job.
    updates : Path
        Directory for the job's updates.
    """
    feed.ready()
    psutil.cpu_percent()
    time.sleep(LOOK_SECONDS)
    others = _busy()
    job = submit(build(JOB, feed.stream, Load(TRIAL_RATE, 1.0), updates), client, latency_target=None, **options)
    feed.begin([job], flights, TRIAL_RATE)
    busy = []
    with progress_bar("Calibrating", feed.read(flights).num_rows) as advance:
        while (described := call_scheduler(client, Describe(JOB))).live:
            advance(described.rows_read)
            feed.check()
            time.sleep(LOOK_SECONDS)
            busy.append(_busy())
    job.wait(progress=False)  # raises for a job that failed
    seconds = [own.latency_p99 for snapshot in job.snapshots() for own in snapshot.jobs if own.name == JOB]
    p99 = [second for second in seconds if second is not None] or [float(job.metrics()["latency_p99"].max())]
    job.forget()
    # Medians, because the first rows find cold code.
    return Machine(psutil.cpu_count() or 1, others, statistics.median(busy), statistics.median(p99))


def _busy() -> float:
    """Return how many processors were busy since the last call of `psutil.cpu_percent`."""
    return float(psutil.cpu_percent()) / 100 * (psutil.cpu_count() or 1)
