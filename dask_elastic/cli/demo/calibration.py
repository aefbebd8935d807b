"""The calibration: trials of two jobs at once, fed as later, show what this machine bears."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from distributed import Client

from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.flight_delays import build
from dask_elastic.cli.demo.load import BUSY_TARGET, LEAST_RATE, TRIAL_RATE, Load, Machine, fit, lower
from dask_elastic.cli.demo.sample import sample
from dask_elastic.cli.demo.usage import Usage
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.client.submit import submit
from dask_elastic.runtime.protocol.job_calls import Describe

JOB = "calibration"

LOOK_SECONDS = 0.25

LAST_TRIALS = 3
"""Trials at the lowest rate before a machine is refused: other programs may just have been busier than usual, and the
code of Spark's first queries is compiled during the first trials, which takes a slow machine long."""


@dataclass(frozen=True)
class Calibration:
    """Finds the load that this machine bears.

    Parameters
    ----------
    clients : mapping of str to Client
        Clients of the clusters; a job runs on each, as later.
    feed : Feed
        Brings the flights into the jobs.
    options : dict
        Options of the jobs.
    folder : Path
        Directory for their checkpoints and updates.
    """

    clients: Mapping[str, Client]
    feed: Feed
    options: dict[str, Any]
    folder: Path

    def run(self, flights: pa.Table) -> Load:
        """Try lower and lower rates until latencies are even enough, and return the load that fits.

        Parameters
        ----------
        flights : Table
            Flights from which those of the trials are taken.

        Raises
        ------
        ClickException
            If this machine does not bear the lowest rate.
        """
        seconds, rate = self.feed.trial_seconds, TRIAL_RATE
        rates: list[float] = []
        while rates.count(LEAST_RATE) < LAST_TRIALS:
            click.echo(f"Calibrating: a trial of {seconds:g} s at {rate:.0f} flights per second for each job ...")
            machine = self._try(sample(flights, [int(seconds * rate)]), rate, len(rates))
            rates.append(rate)
            click.echo(machine_text(machine))
            load = fit(machine)
            if load is not None:
                if len(rates) > 1:
                    load = replace(load, target=BUSY_TARGET)
                click.echo(load_text(load))
                return load
            rate = lower(machine)
        raise click.ClickException(TOO_BUSY)

    def _try(self, flights: pa.Table, rate: float, number: int) -> Machine:
        """Run a job on each cluster at a rate, and measure."""
        self.feed.ready()
        jobs = [self._submit(client, f"{JOB}-{name}-{number}", rate) for name, client in self.clients.items()]
        self.feed.begin(jobs, flights, rate)
        usage = Usage()
        samples = self._follow(jobs, self.feed.read(flights).num_rows, usage)
        latencies: list[float] = []
        for job in jobs:
            job.wait(progress=False)  # raises for a job that failed
            latencies += _latencies(job)
            job.forget()
        # Medians, because the first rows find cold code.
        used, others = (statistics.median(column) for column in zip(*samples, strict=True))
        return Machine(usage.processors, others, used, statistics.median(latencies), rate)

    def _submit(self, client: Client, name: str, rate: float) -> Job:
        topology = build(name, self.feed.stream, Load(rate, 1.0), self.folder / name / "updates")
        checkpoint = self.folder / name / "checkpoints"
        return submit(topology, client, latency_target=None, checkpoint=checkpoint, **self.options)

    def _follow(self, jobs: Sequence[Job], rows: int, usage: Usage) -> list[tuple[float, float]]:
        """Sample the use of processors until all jobs have ended."""
        samples = []
        with progress_bar("Calibrating", len(jobs) * rows) as advance:
            live = True
            while live:
                self.feed.check()
                time.sleep(LOOK_SECONDS)
                samples.append(usage.sample())
                described = [call_scheduler(job.client, Describe(job.name)) for job in jobs]
                advance(sum(found.rows_read for found in described))
                live = any(found.live for found in described)
        return samples


TOO_BUSY = (
    f"This machine is too busy for the demonstration: even {LEAST_RATE:.0f} flights per second were processed too "
    "unevenly to judge latencies. Run it when other programs have ended, or choose --rate and --latency-target."
)


def _latencies(job: Job) -> list[float]:
    """Return the 99th percentiles of a job's latency, a second each."""
    seconds = [own.latency_p99 for snapshot in job.snapshots() for own in snapshot.jobs if own.name == job.name]
    return [second for second in seconds if second is not None] or [float(job.metrics()["latency_p99"].max())]


def machine_text(machine: Machine) -> str:
    """Describe what a trial has measured."""
    return (
        f"Of {machine.processors} processors, the trial used {machine.used:.1f} and other programs "
        f"{machine.others:.1f}; the p99 of its latency was {1e3 * machine.p99:.0f} ms."
    )


def load_text(load: Load) -> str:
    """Describe the load."""
    costs = " and ".join(f"{operator} {1e3 * seconds:.1f} ms" for operator, seconds in load.service.items())
    return (
        f"Hence {load.rate:.0f} flights per second; service times per flight: {costs}; a target of "
        f"{1e3 * load.target:.0f} ms for the mean latency.\n"
    )
