"""``dask elastic move-executor``: move an executor with its state to another worker."""

from __future__ import annotations

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import job_names, stateful_operators, worker_addresses
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.job import job as find_job


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.argument("operator", shell_complete=stateful_operators)
@click.argument("executor", type=click.IntRange(min=0))
@click.argument("worker", shell_complete=worker_addresses)
@connected
def move_executor(connection: Connection, job: str, operator: str, executor: int, worker: str) -> None:
    """Move an EXECUTOR of a stateful OPERATOR of JOB to WORKER, given by address.

    For example:
        dask elastic move-executor word-count per_word 1 tcp://10.0.0.2:40001

    WORKER becomes the home of the executor, with its state; its cores follow as far as WORKER has
    free slots. The job goes on meanwhile: only rows of this executor wait. Sources and sinks stay
    where they are. The command returns when the executor has begun on WORKER; "dask elastic
    decisions JOB" shows how much state was sent, and how long rows waited.
    """
    with connection.client() as client:
        found = find_job(job, client)
        with progress_bar(f"Moving {operator}[{executor}]"):
            found.move_executor(operator, executor, worker)
    click.echo(f"The home of {operator}[{executor}] is on {worker}.")
