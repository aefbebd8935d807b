"""``dask elastic run``: run a script that submits jobs, with a Dask client created for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from distributed import Client

from dask_elastic.cli import script as scripts
from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.local_cluster import kill_workers, local_cluster
from dask_elastic.cli.script_client import ScriptClient
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.dashboard_page import dashboard_page
from dask_elastic.runtime.client.job import POLL_SECONDS
from dask_elastic.runtime.client.job_view import one_line
from dask_elastic.runtime.client.progress import Progress
from dask_elastic.runtime.protocol.job_calls import Describe, Stop, Wait
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import error_text
from dask_elastic.vocab.errors import UnknownJob

OWN_CLUSTER = ("workers", "threads", "dashboard_address")


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, path_type=Path))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Start a local cluster with N processes.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads of each worker; each is a core.")
@click.option("--dashboard-address", metavar="ADDRESS", help="Dashboard address of the local cluster, such as :8787.")
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
        with scripts.environment(script, arguments), _client(connection, own, detach) as client:
            page = dashboard_page(client)
            click.echo(f"Dashboard: {page}" if page else "This cluster serves no dashboard.", err=True)
            try:
                code = scripts.run(script)
                failures = [] if detach or code else [text for job in client.submitted if (text := _wait(client, job))]
            except KeyboardInterrupt:
                if client.cluster is not None:
                    # All that follows is quick; a further Ctrl-C would only break it off with tracebacks.
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                left = _leave(client)
                if client.cluster is not None:
                    kill_workers(client.cluster)
                raise
            if detach or code:
                _leave(client)
    except KeyboardInterrupt:
        if not left:
            click.echo("Interrupted.", err=True)
        raise
    for text in failures:
        click.echo(f"Error: {text}", err=True)
    ctx.exit(code or bool(failures))


@contextmanager
def _client(connection: Connection, own: dict[str, Any], detach: bool) -> Iterator[ScriptClient]:
    """Connect to the given scheduler, or start a local cluster."""
    used = [f"--{name.replace('_', '-')}" for name in OWN_CLUSTER if own[name] is not None]
    if used and (connection.given or connection.has_tls_options):
        raise click.UsageError(f"{used[0]} starts a local cluster: do not combine it with --scheduler or --tls-...")
    if connection.has_tls_options or (not used and connection.known_address()):
        with connection.client(ScriptClient) as client:
            yield client
        return
    if detach:
        raise click.UsageError("--detach needs a running scheduler: a local cluster ends with this command")
    with (
        local_cluster(
            n_workers=own["workers"], threads_per_worker=own["threads"], dashboard_address=own["dashboard_address"]
        ) as cluster,
        ScriptClient(cluster) as client,
    ):
        yield client


def _wait(client: Client, name: str) -> str | None:
    """Wait for a job with a progress line; return the error text, None if the job did not fail."""
    with Progress() as line:
        try:
            described = call_scheduler(client, Describe(name))
            had_ended = not described.live
            while described.live:
                line.show(described)
                described = call_scheduler(client, Wait(name, POLL_SECONDS))
        except UnknownJob:
            return None  # the script called `forget`
        line.show(described)
        if not line.shown:
            line.say(one_line(described))
    if described.error is not None:
        return f"job {name!r} failed: {error_text(described.error)}"
    # A script may stop its own jobs.
    return f"job {name!r} was stopped" if described.status is Status.STOPPED and not had_ended else None


def _leave(client: ScriptClient) -> list[str]:
    """Stop the unfinished jobs of an own cluster; print what happens to each unfinished job, and return their names."""
    unfinished: list[str] = []
    for name in client.submitted:
        try:
            described = call_scheduler(client, Describe(name))
        except UnknownJob:
            continue  # the script called `forget`
        if not described.live:
            continue
        unfinished.append(name)
        if client.cluster is not None:
            call_scheduler(client, Stop(name))
            click.echo(f"Job {name!r} was stopped with the local cluster of this command.", err=True)
            continue
        address = client.scheduler.address
        click.echo(f"Job {name!r} continues at {address}.", err=True)
        click.echo(f"  show it:  dask elastic status {name} --scheduler {address}", err=True)
        click.echo(f"  stop it:  dask elastic stop {name} --scheduler {address}", err=True)
    return unfinished
