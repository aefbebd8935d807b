"""The replay: calibrates, runs the static and the elastic job at once, shows both, and judges them."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import dask.config
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client, LocalCluster

from dask_elastic.cli.demo.calibration import Calibration
from dask_elastic.cli.demo.checks import Check
from dask_elastic.cli.demo.contest import Contest
from dask_elastic.cli.demo.contestant import Contestant
from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.flight_delays import SHARDS, build
from dask_elastic.cli.demo.hot_routes import HOT_ROUTES, HOT_SHARE, hot_routes, reroute
from dask_elastic.cli.demo.load import WORK, Load
from dask_elastic.cli.demo.phases import Phases
from dask_elastic.cli.demo.sample import sample
from dask_elastic.cli.demo.schedule import Schedule
from dask_elastic.cli.local_cluster import local_cluster
from dask_elastic.runtime.client.dashboard_page import dashboard_page
from dask_elastic.runtime.client.job import jobs
from dask_elastic.runtime.client.submit import submit

WORKERS = 2
THREADS = 4
SLOTS = WORKERS * THREADS
"""Slots of each job, on its own workers."""

WORKER_LOGGING = "distributed.nanny.pre-spawn-environ.DASK_DISTRIBUTED__LOGGING__DASK_ELASTIC"

SETTINGS = {
    "elastic.control-cooldown": "1s",
    "elastic.control-release-after": "3s",
    WORKER_LOGGING: "critical",
}
"""A month is replayed in seconds, so the control loop must react faster than by default. Workers do not warn of lost
workers, which the demonstration kills itself; errors end the job, and the command prints them."""

CHECKPOINT_INTERVAL = "2s"

OPTIONS: dict[str, Any] = {
    "inbox_time": "20ms",
    "queue_time": "200ms",
    "report_interval": "250ms",
    "balance_interval": "250ms",
    "checkpoint_interval": CHECKPOINT_INTERVAL,
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
    schedule : Schedule
        How many flights of each month are replayed, and when workers are killed.
    out : Path
        Directory for the results.
    dashboard_address : str
        Address of the dashboard.
    phases : Phases
        Measures the phases.
    load : Load, optional
        The load, instead of one that fits the machine.
    """

    flights: pa.Table
    feed: Feed
    schedule: Schedule
    out: Path
    dashboard_address: str
    phases: Phases
    load: Load | None = None

    def run(self) -> list[Check]:
        """Run both jobs until they end, and return the checks of their results and latencies."""
        click.echo(self._introduction())
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dask-elastic-demo-checkpoints-")))
            stack.enter_context(self.feed)
            stack.enter_context(_quiet())
            stack.enter_context(dask.config.set(SETTINGS))
            clusters = {name: stack.enter_context(self._cluster()) for name in (STATIC, ELASTIC)}
            clients = {
                name: stack.enter_context(Client(cluster, set_as_default=False)) for name, cluster in clusters.items()
            }
            try:
                load = self.load or self._calibrated(clients, folder)
                return self._start(clusters, clients, load, folder).run()
            except BaseException:
                click.echo("\nStopping the jobs and their workers.")
                for job in itertools.chain.from_iterable(map(jobs, clients.values())):
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
            f"Two jobs process the same flights at once, each on {SLOTS} slots of its own (a cluster with {WORKERS} "
            f"workers of {THREADS} threads):\n"
            "  STATIC   one executor of one core for each slot; cores and shards never move\n"
            "  ELASTIC  cores and shards follow the load; cores that are not needed are released\n"
            f"{self.feed.introduction()}\n"
            "Service times are emulated by sleeping, so that a slot needs little processor time.\n"
            f"From February on, {HOT_SHARE} % of a month's flights are changed to {HOT_ROUTES} hot routes, other ones "
            "in each month;\nin the static job they belong to one executor.\n"
            f"Both jobs take a checkpoint every {CHECKPOINT_INTERVAL}. {self._when}, kill -9 ends one worker of each; "
            "both recover by themselves."
        )

    @property
    def _when(self) -> str:
        return "Near the end" if self.schedule.loss_is_last else "In the midst"

    def _calibrated(self, clients: dict[str, Client], folder: Path) -> Load:
        """Find the load that the machine bears."""
        self.phases.begin("calibration")
        click.echo()
        return Calibration(clients, self.feed, OPTIONS, folder).run(self.flights)

    def _start(
        self, clusters: dict[str, LocalCluster], clients: dict[str, Client], load: Load, folder: Path
    ) -> Contest:
        """Submit the jobs, and start to feed them."""
        self.phases.begin("submit")
        executors = SLOTS // len(WORK)
        hot = hot_routes(pc.unique(self.flights["route"]).to_pylist(), executors, SHARDS)
        flights = reroute(sample(self.flights, self.schedule.rows(load.rate)), hot)
        both: list[Contestant] = []
        for label, name, paradigm in (("static", STATIC, "static"), ("elastic", ELASTIC, "executor-centric")):
            topology = build(name, self.feed.stream, load, self.out / name / "route_updates")
            options = {**OPTIONS, "checkpoint": folder / name, "latency_target": load.target}
            job = submit(topology, clients[name], paradigm=paradigm, **options)
            both.append(Contestant(label, job, clusters[name]))
            click.echo(f"{'' if name == ELASTIC else 'Dashboards:':<12}{dashboard_page(clients[name], name)}")
        address = clients[ELASTIC].scheduler.address
        click.echo(f"{'Decisions:':<12}dask elastic decisions {ELASTIC} --scheduler {address}\n")
        self.feed.begin([one.job for one in both], flights, load.rate)
        read = self.feed.read(flights)
        ends = (
            np.bincount(pc.month(read["sched_dep"]).to_numpy(), minlength=self.schedule.months + 1)[1:]
            .cumsum()
            .tolist()
        )
        arrived = len(flights) - flights["arr_delay"].null_count
        static, elastic = both
        loss_row = self.schedule.loss_row(ends)
        return Contest(
            static, elastic, self.feed, load, ends, arrived, [*map(bool, hot)], loss_row, self.out, self.phases
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings about the loss of the workers, which this process causes itself."""
    logger = logging.getLogger("dask_elastic")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
