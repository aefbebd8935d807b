"""``dask elastic decisions``: the control loop's decisions about a job, their reasons and their results."""

from __future__ import annotations

import json
from typing import Any

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.decision_text import decision_text
from dask_elastic.cli.json_text import json_text
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.protocol.job_calls import Decisions


@click.command(cls=Command)
@click.argument("job")
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
              help="Show only the newest N.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of decisions.")
@connected
def decisions(connection: Connection, job: str, last: int, as_json: bool) -> None:
    """Show the decisions about the cores of JOB, oldest first.

    For example:
        dask elastic decisions flight-delays
        dask elastic decisions flight-delays --last 1000 --json > decisions.json

    Each decision shows its changes and its reason, and four mean latencies: the target, the measured
    one, the one that the model predicts for the new cores, and the one observed some seconds later.
    Changes are not carried out in a dry run, during a cooldown, or if they would move too much state.
    """
    with connection.client() as client:
        found: list[dict[str, Any]] = json.loads(call_scheduler(client, Decisions(job, last)))
    if as_json:
        click.echo(json_text(found))
    elif found:
        click.echo("\n".join(map(decision_text, found)))
    else:
        click.echo(f"No decisions about job {job!r} yet.")
