"""``dask elastic stop``: stop jobs at once, or drain them."""

from __future__ import annotations

import shlex
from contextlib import nullcontext

import click
from distributed import Client

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import job_names
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.job import Job, job
from dask_elastic.runtime.protocol.job_status import ENDED_NAMES


@click.command(cls=Command)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=job_names)
@click.option("--drain", is_flag=True, help="Stop reading, and process all rows read so far.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="How long --drain waits for each job; the job continues to drain after that.")  # fmt: skip
@click.option("--savepoint", metavar="URL", help="Take a savepoint in this new folder first, and process nothing more.")
@click.option("--forget", is_flag=True, help="Also delete the state and measures of the jobs.")
@connected
def stop(
    connection: Connection,
    jobs: tuple[str, ...],
    drain: bool,
    timeout: float | None,
    savepoint: str | None,
    forget: bool,
) -> None:
    """Stop or drain JOBs.

    For example:
        dask elastic stop word-count
        dask elastic stop word-count flight-delays --drain --timeout 60
        dask elastic stop word-count --savepoint s3://bucket/word-count-before-upgrade
        dask elastic stop word-count --forget

    Without --drain, jobs stop at once, and rows in flight are dropped. The state and measures of a
    job that has ended stay readable until it is forgotten. If one of the names is unknown, no job
    is stopped. If a savepoint cannot be taken, the job continues.
    """
    if timeout is not None and not drain:
        raise click.UsageError("--timeout limits how long --drain waits: give --drain too")
    if savepoint is not None and (drain or len(jobs) > 1):
        raise click.UsageError("--savepoint stops one job, and not with --drain: each savepoint needs a new folder")
    with connection.client() as client:
        found = [job(name, client) for name in dict.fromkeys(jobs)]
        for one in found:
            _end(one, client, drain, timeout, savepoint)
            if forget:
                one.forget()
                click.echo(f"Job {one.name!r} is forgotten.")


def _end(job: Job, client: Client, drain: bool, timeout: float | None, savepoint: str | None) -> None:
    before = job.status
    if before in ENDED_NAMES:
        if savepoint is not None:
            raise click.ClickException(f"job {job.name!r} is {before}: its savepoint was not taken")
        click.echo(f"Job {job.name!r} has already ended: it is {before}.")
        return
    if drain:
        _drain(job, client, timeout)
    else:
        with progress_bar(f"Saving {job.name!r}") if savepoint else nullcontext():
            job.stop(savepoint=savepoint)
    click.echo(f"Job {job.name!r} is {job.status}.")


def _drain(job: Job, client: Client, timeout: float | None) -> None:
    try:
        with progress_bar(f"Draining {job.name!r}"):
            job.drain(timeout)
    except KeyboardInterrupt:
        address = client.scheduler.address
        click.echo(f"Stop it at once with: dask elastic stop {shlex.quote(job.name)} --scheduler {address}", err=True)
        raise
