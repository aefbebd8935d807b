"""``dask elastic run``: run a script that submits jobs, with a Dask client created for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dask_elastic.cli import script as scripts
from dask_elastic.cli.chosen_client import chosen_client, say_where, starts_cluster
from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.followed_jobs import interrupted, leave, wait


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, path_type=Path))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@starts_cluster
@click.option("--detach", is_flag=True, help="Do not wait for the jobs; needs a running scheduler.")
@connected
@click.pass_context
def run(
    ctx: click.Context, /, connection: Connection, script: Path, arguments: tuple[str, ...], detach: bool, **own: Any
) -> None:
    """Run SCRIPT, and wait for the jobs that it submits.

    For example:
        dask elastic run word_count.py
        dask elastic run word_count.py --workers 4 --threads 2
        dask elastic run word_count.py --scheduler tcp://10.0.0.1:8786 --detach
        dask elastic run word_count.py -- --words 1000

    The command creates a Dask client before it starts the script, so the script only needs to call
    dask_elastic.submit(topology). The client connects to --scheduler or to the configured address.
    Without an address, or with --workers, --threads or --dashboard-address, the command starts a
    cluster on this machine, which ends with the command. SCRIPT runs as with "python SCRIPT ARGS". Unknown options, and
    everything after "--", are passed to the script.

    After the script has ended, the command waits until the script's jobs have ended. Ctrl-C stops
    waiting: jobs on an existing cluster continue, jobs on the command's own cluster are stopped.

    Exit codes: 0 if all jobs finished; 1 if the script raised, or a job failed or was stopped; 130
    after Ctrl-C; otherwise the exit code of the script.
    """
    left: list[str] = []
    try:
        with scripts.environment(script, arguments), chosen_client(connection, own, detach) as client:
            say_where(client)
            try:
                code = scripts.run(script)
                failures = (
                    []
                    if detach or code
                    else [text for job in client.submitted if (text := wait(client, job, by_script=True))]
                )
            except KeyboardInterrupt:
                left = interrupted(client)
                raise
            if detach or code:
                leave(client)
    except KeyboardInterrupt:
        if not left:
            click.echo("Interrupted.", err=True)
        raise
    for text in failures:
        click.echo(f"Error: {text}", err=True)
    ctx.exit(code or bool(failures))
