"""``dask elastic decisions``: what the control loop decided about a job, why, and what came of it."""

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
              help="How many, the newest ones.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of decisions.")
@connected
def decisions(connection: Connection, job: str, last: int, as_json: bool) -> None:
    """Show what was decided about the cores of JOB, oldest first.

    For example:
        dask elastic decisions flight-delays
        dask elastic decisions flight-delays --last 1000 --json > decisions.json

    Each decision says what it changes; which mean latency was wanted and measured, which one the
    model predicted of the new cores, and which one was observed some seconds later; and why. Changes
    are not carried out in a dry run, and when they would come too soon or move too much state.
    """
    with connection.client() as client:
        found: list[dict[str, Any]] = json.loads(call_scheduler(client, Decisions(job, last)))
    if as_json:
        click.echo(json_text(found))
    elif found:
        click.echo("\n".join(map(decision_text, found)))
    else:
        click.echo(f"Nothing was decided about job {job!r} yet.")
