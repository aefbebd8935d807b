"""The jobs that a command has started: waits for them, and says what happens to those that it leaves."""

from __future__ import annotations

import shlex
import signal

import click
from distributed import Client

from dask_elastic.cli.local_cluster import kill_workers
from dask_elastic.cli.script_client import ScriptClient
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job_view import one_line
from dask_elastic.runtime.client.progress import Progress
from dask_elastic.runtime.protocol.job_calls import Describe, Stop, Wait
from dask_elastic.runtime.protocol.job_end import end_warning
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import error_text
from dask_elastic.vocab.errors import UnknownJob


def wait(client: Client, name: str, by_script: bool = False) -> str | None:
    """Wait for a job with a progress line; return why it did not finish.

    Parameters
    ----------
    client : Client
        The client.
    name : str
        The job.
    by_script : bool
        Whether a script has run before, which may have stopped the job itself.

    Returns
    -------
    str or None
        The text of an error; None if the job finished, was forgotten, or was stopped by the script.
    """
    with Progress() as line:
        try:
            had_ended = not call_scheduler(client, Describe(name)).live
            described = line.follow(lambda seconds: call_scheduler(client, Wait(name, seconds)))
        except UnknownJob:
            return None  # the script called `forget`
        if not line.shown:
            line.say(one_line(described))
        if text := end_warning(described):
            line.say(f"Warning: {text}")
    if described.error is not None:
        return f"job {name!r} failed: {error_text(described.error)}"
    by_itself = by_script and had_ended
    return f"job {name!r} was stopped" if described.status is Status.STOPPED and not by_itself else None


def leave(client: ScriptClient) -> list[str]:
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
            if described.checkpoints is not None and described.checkpoints.number:
                click.echo(f"  resume it:  dask elastic resume {shlex.quote(described.checkpoints.url)}", err=True)
            continue
        address, quoted = client.scheduler.address, shlex.quote(name)
        click.echo(f"Job {name!r} continues at {address}.", err=True)
        click.echo(f"  show it:  dask elastic status {quoted} --scheduler {address}", err=True)
        click.echo(f"  stop it:  dask elastic stop {quoted} --scheduler {address}", err=True)
    return unfinished


def interrupted(client: ScriptClient) -> list[str]:
    """Leave the jobs after Ctrl-C, and end an own cluster at once; return the names of the unfinished jobs."""
    if client.cluster is not None:
        # All that follows is quick; a further Ctrl-C would only break it off with tracebacks.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    left = leave(client)
    if client.cluster is not None:
        kill_workers(client.cluster)
    return left
