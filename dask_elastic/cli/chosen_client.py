"""The client of a command that starts jobs: on the scheduler that is given, or on a cluster of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from dask_elastic.cli.connection import Connection
from dask_elastic.cli.local_cluster import local_cluster
from dask_elastic.cli.script_client import ScriptClient
from dask_elastic.runtime.client.dashboard_page import dashboard_page

OWN_CLUSTER = ("workers", "threads", "dashboard_address")


def starts_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options of a local cluster; it receives them by the names in `OWN_CLUSTER`."""
    address = "Dashboard address of the local cluster, such as :8787."
    for option in (
        click.option("--dashboard-address", metavar="ADDRESS", help=address),
        click.option("--threads", type=click.IntRange(min=1), metavar="N",
                     help="Threads of each worker; each is a core."),
        click.option("--workers", type=click.IntRange(min=1), metavar="N",
                     help="Start a local cluster with N processes."),
    ):  # fmt: skip
        command = option(command)
    return command


@contextmanager
def chosen_client(connection: Connection, own: Mapping[str, Any], detach: bool) -> Iterator[ScriptClient]:
    """Connect to the given scheduler, or start a local cluster.

    Parameters
    ----------
    connection : Connection
        The connection options.
    own : mapping
        The options of `starts_cluster`.
    detach : bool
        Whether the command ends before its jobs do.

    Yields
    ------
    ScriptClient
        The client.

    Raises
    ------
    click.UsageError
        If the options contradict each other.
    """
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


def say_where(client: ScriptClient) -> None:
    """Print the address of the dashboard and, of a cluster that the command has started, that of the scheduler.

    Parameters
    ----------
    client : ScriptClient
        A client of the cluster.
    """
    page = dashboard_page(client)
    click.echo(f"Dashboard: {page}" if page else "This cluster serves no dashboard.", err=True)
    if client.cluster is not None:
        click.echo(f"Scheduler: {client.scheduler.address}, for --scheduler of other commands", err=True)
