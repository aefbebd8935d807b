"""``dask elastic status``: the jobs of a cluster, or one job in detail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click
from distributed import Client

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.descriptions import descriptions
from dask_elastic.cli.job_completion import job_names
from dask_elastic.cli.json_text import json_text
from dask_elastic.cli.overview import overview
from dask_elastic.cli.status_view import detail, listing
from dask_elastic.cli.terminal.console import live_view, show
from dask_elastic.runtime.client.dashboard_page import dashboard_page
from dask_elastic.runtime.protocol.calls import HOSTED
from dask_elastic.runtime.protocol.job_status import ENDED_NAMES


@click.command(cls=Command)
@click.argument("job", required=False, shell_complete=job_names)
@click.option("--running", is_flag=True, help="Leave out jobs that have ended.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C; with a JOB, until the job ends.")
@click.option("--every", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              metavar="SECONDS", help="Interval of --watch.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line per refresh.")
@connected
def status(connection: Connection, job: str | None, running: bool, watch: bool, every: float, as_json: bool) -> None:
    """Show the jobs of a cluster, or one JOB in detail.

    For example:
        dask elastic status --running
        dask elastic status word-count --watch
        dask elastic status --json | jq '.jobs[] | {name, status, cores}'

    The list has one line per job: status, running time, rows read by its sources since the job or
    its last restart from a checkpoint began, rows per second that they read now, latency (median
    and 99th percentile, of the slowest executor), cores, and shards moved. For a JOB in detail,
    there is one line per executor: its home (the worker), cores, tuples per second, tuples per
    second that one core can serve, queued tuples, latency, state size, shards moved, and how many
    of these across workers; and the state of the control loop for the job. A job with checkpoints
    also has the newest complete one, how long ago it began, restarts, and why the last one that was
    given up failed.
    """
    if job is not None and running:
        raise click.UsageError("--running selects among all jobs: leave out either JOB or --running")
    with connection.client() as client, _output(client, as_json, watch) as show:
        while True:
            found = [one for one in descriptions(client, job) if one.live or not running]
            jobs = [overview(described) for described in found]
            show(jobs, job)
            if not watch or (job and jobs[0]["status"] in ENDED_NAMES):
                return
            time.sleep(every)


@contextmanager
def _output(client: Client, as_json: bool, watch: bool) -> Iterator[Callable[[list[dict[str, Any]], str | None], None]]:
    """Yield a function that shows jobs, or the one of a name in detail."""
    if as_json:
        yield lambda jobs, job: click.echo(as_text(client, jobs, indent=None if watch else 2))
        return
    address, page = client.scheduler.address, _page(client)
    with live_view() if watch else nullcontext(show) as shown:
        yield lambda jobs, job: shown(*(detail(jobs[0]) if job else listing(address, page, jobs)))


def as_text(client: Client, jobs: list[dict[str, Any]], indent: int | None) -> str:
    """Format jobs as JSON."""
    whole = {"scheduler": client.scheduler.address, "dashboard": _page(client), "jobs": jobs}
    return json_text(whole, indent)


def _page(client: Client) -> str | None:
    """Return the page of jobs on the dashboard; None before the scheduler hosts dask_elastic, which serves it."""
    return None if client.get_metadata([HOSTED], None) is None else dashboard_page(client)
