"""``dask elastic status``: the jobs of a cluster, or one job in detail."""

from __future__ import annotations

import time
from typing import Any

import click
from distributed import Client

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.json_text import json_text
from dask_elastic.cli.overview import overview
from dask_elastic.cli.screen import Screen
from dask_elastic.cli.table import clock, count, duration, size, table
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.dashboard_page import dashboard_page
from dask_elastic.runtime.client.job import ENDED
from dask_elastic.runtime.client.job_view import handed_over
from dask_elastic.runtime.protocol.job_calls import Describe, ListJobs
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_spec import ELASTIC
from dask_elastic.vocab.epoch import HandoffProgress
from dask_elastic.vocab.errors import UnknownJob

JOB_HEAD = ("job", "status", "time", "rows", "rows/s", "p50", "p99", "cores", "moves")
EXECUTOR_HEAD = ("executor", "home", "cores", "tuples/s", "per core", "queue", "p50", "p99", "state", "moves")


@click.command(cls=Command)
@click.argument("job", required=False)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C; with a JOB, until the job ends.")
@click.option("--every", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              metavar="SECONDS", help="Interval of --watch.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line per refresh.")
@connected
def status(connection: Connection, job: str | None, watch: bool, every: float, as_json: bool) -> None:
    """Show the jobs of a cluster, or one JOB in detail.

    For example:
        dask elastic status
        dask elastic status word-count --watch
        dask elastic status --json | jq '.jobs[] | {name, status, cores}'

    The list has one line per job: status, running time, rows read by its sources, rows per second
    that they read now, latency (median and 99th percentile, of the slowest executor), cores, and
    shards moved. For a JOB in detail, there is one line per executor: its home (the
    worker), cores, tuples per second, tuples per second that one core can serve, queued tuples,
    latency, state size, and shards moved; and the state of the control loop for the job.
    """
    screen = Screen()
    with connection.client() as client:
        while True:
            jobs = [overview(described) for described in descriptions(client, job)]
            if as_json:
                screen.stream.write(as_text(client, jobs, indent=None if watch else 2) + "\n")
                screen.stream.flush()
            else:
                screen.show(detail(jobs[0]) if job else listing(client, jobs))
            if not watch or (job and jobs[0]["status"] in ENDED):
                return
            time.sleep(every)


def descriptions(client: Client, job: str | None = None) -> list[JobDescription]:
    """Return the scheduler's descriptions of all jobs, oldest first, or of one job.

    Parameters
    ----------
    client : Client
        A client of the cluster.
    job : str, optional
        The name of the one job.

    Returns
    -------
    list of JobDescription
        One description per job.

    Raises
    ------
    UnknownJob
        If the cluster has no job of that name.
    """
    if job is not None:
        return [call_scheduler(client, Describe(job))]
    try:
        known = call_scheduler(client, ListJobs())
    except UnknownJob:  # the scheduler's plugin is not installed before the first submit
        return []
    return list(known)


def as_text(client: Client, jobs: list[dict[str, Any]], indent: int | None) -> str:
    """Format jobs as JSON."""
    whole = {"scheduler": client.scheduler.address, "dashboard": dashboard_page(client), "jobs": jobs}
    return json_text(whole, indent)


def listing(client: Client, jobs: list[dict[str, Any]]) -> str:
    """Format jobs as a table."""
    if not jobs:
        return f"No jobs at {client.scheduler.address}."
    page = dashboard_page(client)
    lines = [f"Dashboard: {page}"] if page else []
    return "\n".join([*lines, table(JOB_HEAD, map(_job_row, jobs), left=2)])


def _job_row(job: dict[str, Any]) -> list[str]:
    return [
        job["name"],
        _status(job),
        f"{job['seconds']:,.0f} s",
        count(job["rows"]),
        count(job["source_rate"]),
        duration(job["latency_p50"]),
        duration(job["latency_p99"]),
        count(job["cores"]),
        count(job["moves"]),
    ]


def _status(job: dict[str, Any]) -> str:
    lacking = [name for name in ("oversubscribed", "starved") if job[name] and job["ended"] is None]
    return ", ".join([job["status"], *lacking])


def detail(job: dict[str, Any]) -> str:
    """Format a job in a few lines, and its executors as a table."""
    lines = [table(JOB_HEAD, [_job_row(job)], left=2), ""]
    if job["error"]:
        lines += [f"Error: {job['error']}", ""]
    lines += _control_lines(job)
    for handoff in job["handoffs"]:
        lines.append(f"Handoff: {handed_over(HandoffProgress(**handoff), live=job['ended'] is None)}")
    for operator, rows in job["dead_letters"].items():
        lines.append(f"Dead letters of {operator}: {count(rows)} rows")
    if lines[-1]:
        lines.append("")
    lines.append(table(EXECUTOR_HEAD, map(_executor_row, job["executors"]), left=2))
    return "\n".join(lines)


def _control_lines(job: dict[str, Any]) -> list[str]:
    """Format the state of the control loop for a job."""
    lines = []
    if job["latency_target"] is not None:
        reached = "" if job["feasible"] else ", which no allocation reaches"
        lines.append(
            f"Latency target: {duration(job['latency_target'])}{reached}; predicted {duration(job['predicted'])}"
        )
    if job["paradigm"] != ELASTIC:
        lines.append(f"Paradigm: {job['paradigm']}")
    if job["dry_run"]:
        lines.append("Dry run: decisions are not carried out")
    if job["starved"]:
        lines.append(f"Starved: {job['starved']} {'core' if job['starved'] == 1 else 'cores'} missing")
    if job["bound"]:
        lines.append(f"GIL-bound operators: {', '.join(job['bound'])}")
    if job["decided"]:
        lines.append(f"Last decision, {clock(job['decided_at'])}: {job['decided']}")
    if job["control_error"]:
        lines.append(f"Error in the control loop: {job['control_error']}")
    return lines


def _executor_row(executor: dict[str, Any]) -> list[str]:
    return [
        executor["id"],
        executor["node"],
        count(executor["cores"]),
        count(executor["arrival_rate"]),
        count(executor["service_rate"]),
        count(executor["queue"]),
        duration(executor["latency_p50"]),
        duration(executor["latency_p99"]),
        size(executor["state_bytes"]),
        f"{count(executor['moves'])} ({count(executor['moves_across'])} across workers)",
    ]
