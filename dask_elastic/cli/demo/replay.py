"""The replay: calibrates, runs the static and the elastic job at once, shows both, and judges them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import dask.config
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client, LocalCluster

from dask_elastic.cli.demo.calibration import calibrate
from dask_elastic.cli.demo.checks import Check
from dask_elastic.cli.demo.contest import Contest
from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.flight_delays import SHARDS, build
from dask_elastic.cli.demo.hot_routes import HOT_ROUTES, HOT_SHARE, hot_routes, reroute
from dask_elastic.cli.demo.load import TRIAL_RATE, WORK, Load, Machine, fit
from dask_elastic.cli.demo.sample import sample
from dask_elastic.cli.local_cluster import local_cluster
from dask_elastic.runtime.client.dashboard_page import dashboard_page
from dask_elastic.runtime.client.job import Job, jobs
from dask_elastic.runtime.client.submit import submit

WORKERS = 2
THREADS = 4
SLOTS = WORKERS * THREADS
"""Slots of each job, on its own workers."""

CONTROL = {"elastic.control-cooldown": "1s", "elastic.control-release-after": "3s"}
"""A month is replayed in seconds, so the control loop must react faster than by default."""

OPTIONS: dict[str, Any] = {
    "inbox_time": "20ms",
    "queue_time": "200ms",
    "report_interval": "250ms",
    "balance_interval": "250ms",
}
"""Emulated rows are slow: the default inbox would hold a row or two, and the cost per sub-batch would dominate."""

STATIC, ELASTIC = "flights-static", "flights-elastic"
"""The names of the jobs, on the screen and on the dashboard page."""


@dataclass(frozen=True)
class Replay:
    """A replay of flights by two jobs.

    Parameters
    ----------
    flights : Table
        The flights of a year, in order of departure.
    feed : Feed
        Brings the flights into the jobs.
    months : int
        How many months are replayed.
    month_seconds : float
        Seconds in which each month is replayed.
    out : Path
        Directory for the results.
    dashboard_address : str
        Address of the dashboard.
    load : Load, optional
        The load, instead of one that fits the machine.
    """

    flights: pa.Table
    feed: Feed
    months: int
    month_seconds: float
    out: Path
    dashboard_address: str
    load: Load | None = None

    def run(self) -> list[Check]:
        """Run both jobs until they end, and return the checks of their results and latencies."""
        click.echo(self._introduction())
        with self.feed, dask.config.set(CONTROL), self._cluster() as cluster, Client(cluster) as client:
            try:
                return self._start(cluster, client, self.load or self._calibrated(client)).run()
            except BaseException:
                click.echo("\nStopping the jobs and their workers.")
                for job in jobs(client):
                    job.stop()
                self.feed.stop()
                raise

    def _cluster(self) -> AbstractContextManager[LocalCluster]:
        return local_cluster(
            n_workers=WORKERS,
            threads_per_worker=THREADS,
            memory_limit=0,
            dashboard_address=self.dashboard_address,
            silence_logs=logging.CRITICAL,
        )

    def _introduction(self) -> str:
        return (
            f"Two jobs process the same flights at once, each on {SLOTS} slots of its own ({WORKERS} workers of "
            f"{THREADS} threads):\n"
            "  STATIC   one executor of one core for each slot; cores and shards never move\n"
            "  ELASTIC  cores and shards follow the load; cores that are not needed are released\n"
            f"{self.feed.introduction()}\n"
            "Service times are emulated by sleeping, so that a slot needs little processor time.\n"
            f"From February on, {HOT_SHARE} % of a month's flights are changed to {HOT_ROUTES} hot routes, other ones "
            "in each month;\nin the static job they belong to one executor."
        )

    def _calibrated(self, client: Client) -> Load:
        """Measure the machine and return the load that fits it."""
        seconds = self.feed.trial_seconds
        click.echo(f"\nCalibrating: a trial of {seconds:g} s at {TRIAL_RATE:g} flights per second ...")
        trial = sample(self.flights, 1, int(seconds * TRIAL_RATE))
        machine = calibrate(client, self.feed, trial, OPTIONS, self.out / "calibration")
        load = fit(machine)
        click.echo(calibration_text(machine, load))
        return load

    def _start(self, cluster: LocalCluster, client: Client, load: Load) -> Contest:
        """Submit the jobs, and start to feed them.

        The static job takes all slots that it finds. Workers for the elastic job are therefore started after it; the
        control loop gives the elastic job only slots that no other job holds.
        """
        executors = SLOTS // len(WORK)
        hot = hot_routes(pc.unique(self.flights["route"]).to_pylist(), executors, SHARDS)
        flights = reroute(sample(self.flights, self.months, round(load.rate * self.month_seconds)), hot)
        both: dict[str, Job] = {}
        for name, paradigm in ((STATIC, "static"), (ELASTIC, "executor-centric")):
            topology = build(name, self.feed.stream, load, self.out / name / "route_updates")
            both[name] = submit(topology, client, paradigm=paradigm, latency_target=load.target, **OPTIONS)
            if name == STATIC:
                cluster.scale(2 * WORKERS)
                client.wait_for_workers(2 * WORKERS)
            click.echo(f"{'Dashboard:' if name == STATIC else '':<11}{dashboard_page(client, name)}")
        click.echo(f"{'Decisions:':<11}dask elastic decisions {ELASTIC} --scheduler {client.scheduler.address}\n")
        self.feed.begin([*both.values()], flights, load.rate)
        read = self.feed.read(flights)
        months = np.bincount(pc.month(read["sched_dep"]).to_numpy(), minlength=self.months + 1)[1:]
        return Contest(
            both[STATIC], both[ELASTIC], self.feed, load, months.cumsum().tolist(), [*map(bool, hot)], self.out
        )


def calibration_text(machine: Machine, load: Load) -> str:
    """Describe what was measured, and the load that follows from it."""
    costs = " and ".join(f"{operator} {1e3 * seconds:.1f} ms" for operator, seconds in load.service.items())
    return (
        f"Of {machine.processors} processors, {machine.others:.1f} were busy before the trial and {machine.busy:.1f} "
        f"during it; its p99 was {1e3 * machine.p99:.0f} ms.\n"
        f"Hence {load.rate:.0f} flights per second; service times per flight: {costs}; a target of "
        f"{1e3 * load.target:.0f} ms for the mean latency.\n"
    )
