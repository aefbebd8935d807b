"""``dask elastic retire``: drain workers, so that they can be closed without loss for running jobs."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from contextlib import suppress

import click
from distributed import Client

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.descriptions import descriptions
from dask_elastic.cli.job_completion import worker_addresses
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.retire import retire as retire_workers
from dask_elastic.runtime.protocol.job_calls import Assignment
from dask_elastic.vocab.errors import UnknownJob

STEP_SECONDS = 1.0
"""Seconds between two looks at what is left to do."""


@click.command(cls=Command)
@click.argument("workers", nargs=-1, required=True, metavar="WORKER...", shell_complete=worker_addresses)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="How long to wait; the workers continue to drain after that.")  # fmt: skip
@click.option("--close", is_flag=True, help="Close the workers afterwards.")
@connected
def retire(connection: Connection, workers: tuple[str, ...], timeout: float | None, close: bool) -> None:
    """Move all executors and tasks off WORKERs, given by address, until they can be closed.

    For example:
        dask elastic retire tcp://10.0.0.2:40001
        dask elastic retire tcp://10.0.0.2:40001 tcp://10.0.0.3:40001 --close --timeout 60

    Executors move to other workers with their state, and get as many cores there as are free. No
    job uses the retired workers again. Jobs with a source or a sink there, and static and
    resource-centric jobs, restart from a checkpoint elsewhere; if one takes no checkpoints, nothing
    is changed. After Ctrl-C or a timeout the workers get no new tasks; run the command again to
    continue.
    """
    chosen = [*dict.fromkeys(workers)]
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with connection.client() as client:
        total = _tasks_left(client, chosen)
        with progress_bar("Moving tasks to other workers", total) as advance:
            while not _retired(client, chosen, deadline):
                advance(total - _tasks_left(client, chosen))
        if close:
            with progress_bar("Closing the workers"):
                client.retire_workers(chosen, close_workers=True)
    done = "closed" if close else "retired, and can be closed"
    click.echo(f"{', '.join(chosen)}: {done}.")


def _retired(client: Client, workers: list[str], deadline: float) -> bool:
    """Wait a while for the workers to drain; return whether they have."""
    seconds = min(STEP_SECONDS, deadline - time.monotonic())
    try:
        retire_workers(workers, client, max(0.0, seconds))
    except TimeoutError:
        if time.monotonic() >= deadline:
            raise
        return False
    return True


def _tasks_left(client: Client, workers: Collection[str]) -> int:
    """Return how many tasks of running jobs are on workers."""
    left = 0
    for described in descriptions(client):
        if described.live:
            with suppress(UnknownJob):  # forgotten meanwhile
                parts = call_scheduler(client, Assignment(described.name))
                places = {number for number, address in enumerate(described.nodes) if address in workers}
                left += sum(node in places for part in parts for node in part.node_of_task.values())
    return left
