"""The replay: starts a cluster, runs the job, shows its progress, and checks its results."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import dask.config
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from dask_elastic.cli.connection import dashboard_page
from dask_elastic.cli.decision_text import changes_text, moved_cores
from dask_elastic.cli.demo.checks import Check, compare_state, compare_updates, movements
from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.flight_delays import KEYS, SERVICE_SECONDS, build
from dask_elastic.cli.demo.hot_routes import HOT_SHARE
from dask_elastic.cli.demo.live_line import LiveLine
from dask_elastic.cli.local_cluster import local_cluster
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import ENDED, Job
from dask_elastic.runtime.client.submit import submit
from dask_elastic.runtime.protocol.job_calls import Decisions, Describe

WORKERS = 3
THREADS = 3

CONTROL = {"elastic.control-cooldown": "1s", "elastic.control-release-after": "2s"}
"""A month is replayed in seconds, so the control loop must react faster than by default."""

OPTIONS: dict[str, Any] = {"inbox_time": "20ms", "queue_time": "200ms"}
"""Emulated rows are slow: the default inbox would hold only a few rows, and the cost per sub-batch would dominate."""

LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Replay:
    """A replay of flights.

    Parameters
    ----------
    flights : Table
        The flights, in order of departure.
    feed : Feed
        Brings the flights into the job.
    rate : float
        Flights per second.
    seconds : float
        Seconds after the start at which reading stops; a machine too slow for the rate does not read all flights.
    latency_target : str
        Target for the mean latency.
    out : Path
        Directory for the results.
    dashboard_address : str
        Address of the dashboard.
    """

    flights: pa.Table
    feed: Feed
    rate: float
    seconds: float
    latency_target: str
    out: Path
    dashboard_address: str

    def run(self) -> list[Check]:
        """Run the job until it ends, and return the checks of its results."""
        began = time.monotonic()
        click.echo(self._introduction())
        with (
            self.feed,
            dask.config.set(CONTROL),
            local_cluster(
                n_workers=WORKERS,
                threads_per_worker=THREADS,
                memory_limit=0,
                dashboard_address=self.dashboard_address,
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster) as client,
        ):
            topology = build(self.feed.stream, self.out / "route_updates")
            job = submit(topology, client, latency_target=self.latency_target, **OPTIONS)
            click.echo(f"Dashboard:  {dashboard_page(client)}")
            click.echo(f"Decisions:  dask elastic decisions {job.name} --scheduler {client.scheduler.address}\n")
            try:
                self.feed.begin(job)
                decisions = self._follow(job, began)
            except KeyboardInterrupt:
                job.stop()
                click.echo("\nInterrupted: stopping the job and its workers.")
                raise
            added, released = map(sum, zip((0, 0), *map(moved_cores, decisions), strict=True))
            return [*self._compare(job), *movements(job.metrics(), added, released)]

    def _introduction(self) -> str:
        rows, seconds = _arrived(self.flights), self.flights.num_rows / self.rate
        costs = " and ".join(f"{operator} {seconds * 1e6:.0f} µs" for operator, seconds in SERVICE_SECONDS.items())
        return (
            f"Replaying {self.flights.num_rows:,} flights, {rows:,} of which arrived, in {seconds:.0f} s: "
            f"{self.rate:,.0f} per second.\n"
            f"{self.feed.introduction()}\n"
            f"On {WORKERS} workers of {THREADS} threads, with a latency target of {self.latency_target}.\n"
            f"Service times are emulated by sleeping: {costs} per flight.\n"
            f"In each month, {HOT_SHARE} % of the flights are changed to two hot routes, which change every month."
        )

    def _follow(self, job: Job, began: float) -> list[dict[str, Any]]:
        """Show the job's progress until it has ended; return the decisions that moved cores."""
        line = LiveLine()
        moved: dict[int, dict[str, Any]] = {}
        rows = _arrived(self.flights)
        late = False
        while job.status not in ENDED:
            for decision in json.loads(call_scheduler(job.client, Decisions(job.name))):
                if decision["number"] not in moved and moved_cores(decision) != (0, 0):
                    moved[decision["number"]] = decision
                    line.print_line(f"  -> {changes_text(decision)}")
            line.show(" ".join([progress_text(job.metrics(), rows), *handoff_texts(job)]))
            self.feed.check()
            if not late and time.monotonic() - began > self.seconds and self.feed.fed(job) < self.flights.num_rows:
                late = True
                line.print_line(
                    f"  Reading stops after {self.seconds:g} s; this machine is too slow or too busy for the rate."
                )
                self.feed.end_early(job)
            time.sleep(LOOK_SECONDS)
        line.close()
        job.wait()  # raises for a job that failed or was stopped
        click.echo(f"Done in {time.monotonic() - began:.0f} s.")
        return [*moved.values()]

    def _compare(self, job: Job) -> list[Check]:
        """Write the final state to files, and compare all results with the batch's."""
        fed = self.feed.fed(job)
        checks = [Check("flights read", fed > 0, f"{fed:,} of {self.flights.num_rows:,}")]
        if not fed:
            return checks
        expected = self.feed.expected(job)
        for operator in KEYS:
            state = job.state(operator).to_arrow()
            pq.write_table(state, self.out / f"{operator}.parquet")
            checks += compare_state(operator, state.to_pandas(), expected[operator])
        return [*checks, compare_updates(self.out / "route_updates", expected["per_route"])]


def _arrived(flights: pa.Table) -> int:
    return int(flights.num_rows - flights["arr_delay"].null_count)


def handoff_texts(job: Job) -> list[str]:
    """Describe the progress of each Spark handoff to a job."""
    handoffs = call_scheduler(job.client, Describe(job.name)).handoffs
    return [f" epoch {one.epoch}, {one.waiting} of {one.limit} wait" for one in handoffs if one.epochs]


def progress_text(metrics: pd.DataFrame, rows: int) -> str:
    """Format throughput, latency, cores and moves in one line.

    Parameters
    ----------
    metrics : DataFrame
        The metrics of the job.
    rows : int
        Number of rows that each operator processes until the end.
    """
    if metrics.empty or metrics["latency_p99"].isna().all():
        return "starting"
    done = metrics.groupby("operator")["rows"].sum().min() / rows
    rate = metrics.groupby("operator")["throughput"].sum().min()
    p50, p99 = (1000 * metrics[column].astype(float).max() for column in ("latency_p50", "latency_p99"))
    cores = " ".join(f"{operator} {'+'.join(map(str, own['cores']))}" for operator, own in metrics.groupby("operator"))
    return f"{done:4.0%}  {rate:5,.0f}/s  p50 {p50:.0f} p99 {p99:.0f} ms  cores {cores}  {metrics['moves'].sum()} moves"
