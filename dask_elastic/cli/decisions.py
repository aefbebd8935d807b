"""``dask elastic decisions``: the control loop's decisions about a job, their reasons and their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.decision_text import decision_text
from dask_elastic.cli.job_completion import job_names
from dask_elastic.cli.json_text import json_text
from dask_elastic.cli.terminal.console import show
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.protocol.job_calls import Decisions

if TYPE_CHECKING:
    from dask_elastic.cli.terminal.console import Shown

INDENT = 4


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
              help="Show only the newest N.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of decisions.")
@connected
def decisions(connection: Connection, job: str, last: int, as_json: bool) -> None:
    """Show the decisions about the cores of JOB, and the moves of its executors, oldest first.

    For example:
        dask elastic decisions flight-delays
        dask elastic decisions flight-delays --last 1000 --json > decisions.json

    Each decision shows its changes and its reason, and four mean latencies: the target, the measured
    one, the one that the model predicts for the new cores, and the one observed some seconds later.
    Changes are not carried out in a dry run, during a cooldown, or if they would move too much state.
    """
    with connection.client() as client:
        found: list[dict[str, Any]] = json.loads(bytes(call_scheduler(client, Decisions(job, last))))
    if as_json:
        click.echo(json_text(found))
    elif found:
        show(*chain.from_iterable(map(_shown, found)))
    else:
        click.echo(f"No decisions about job {job!r} yet.")


def _shown(decision: dict[str, Any]) -> Iterator[Shown]:
    from rich.padding import Padding
    from rich.text import Text

    headline, lines = decision_text(decision)
    changed = decision["changes"] or decision.get("homes") or decision.get("others")
    yield headline, "bold" if changed and decision["applied"] else "dim"
    for line in lines:
        yield Padding(Text(line), (0, 0, 0, INDENT), expand=False)
