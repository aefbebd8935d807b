"""``dask elastic checkpoint``, ``savepoint`` and ``checkpoints``: take one, copy one, and list the newest ones."""

from __future__ import annotations

from dataclasses import asdict

import click

from dask_elastic.cli.checkpoints.view import checkpoint_table
from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import job_names
from dask_elastic.cli.json_text import json_text
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import job as find_job
from dask_elastic.runtime.protocol.job_calls import Checkpoints


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@connected
def checkpoint(connection: Connection, job: str) -> None:
    """Take a checkpoint of JOB now, and print its number.

    For example:
        dask elastic checkpoint word-count
        number=$(dask elastic checkpoint word-count) && dask elastic stop word-count

    The command ends when the checkpoint is complete, and fails if it was given up. The job must
    have been submitted with checkpoint=FOLDER.
    """
    with connection.client() as client:
        found = find_job(job, client)
        with progress_bar(f"Taking a checkpoint of {job!r}"):
            number = found.checkpoint()
    click.echo(number)


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.argument("url")
@connected
def savepoint(connection: Connection, job: str, url: str) -> None:
    """Take a checkpoint of JOB, copy it to the new folder URL, and print its number.

    For example:
        dask elastic savepoint word-count s3://bucket/word-count-before-upgrade
        dask elastic resume s3://bucket/word-count-before-upgrade --checkpoint s3://bucket/word-count-2

    The copy stays until you delete it; the job continues. To stop the job behind it, use
    dask elastic stop --savepoint URL. The job must have been submitted with checkpoint=FOLDER.
    """
    with connection.client() as client:
        found = find_job(job, client)
        with progress_bar(f"Saving {job!r}"):
            number = found.savepoint(url)
    click.echo(number)


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
              help="Show only the newest N; the scheduler keeps 100.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of checkpoints.")
@connected
def checkpoints(connection: Connection, job: str, last: int, as_json: bool) -> None:
    """Show the newest checkpoints of JOB, oldest first.

    For example:
        dask elastic checkpoints word-count
        dask elastic checkpoints word-count --last 100 --json | jq '.[] | select(.error)'

    For each checkpoint: its number; when it began; the time until all of its parts were durable, or
    it was given up; the bytes that were written for it; the longest time for which the inputs of an
    executor were held; and why it was given up. A restart continues from the last one without error.
    """
    with connection.client() as client:
        taken = call_scheduler(client, Checkpoints(job))[-last:]
    if as_json:
        click.echo(json_text([asdict(one) for one in taken]))
    elif taken:
        show(checkpoint_table(taken))
    else:
        click.echo(f"Job {job!r} has taken no checkpoint yet.")
