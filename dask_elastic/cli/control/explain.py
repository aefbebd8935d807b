"""``dask elastic explain``: why the cores of a job are where they are."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import computes, job_names
from dask_elastic.runtime.client.job import job as find_job
from dask_elastic.runtime.client.recordings import save_snapshots
from dask_elastic.vocab.counted import counted


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.argument("operator", required=False, shell_complete=computes)
@click.option("--plan", "plan", is_flag=True, help="Show only what the control loop would decide now.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of executors; not with --plan.")
@click.option("--snapshots", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write what the control loop measured to FILE, for dask elastic replay.")  # fmt: skip
@connected
def explain(
    connection: Connection, job: str, operator: str | None, plan: bool, as_json: bool, path: Path | None
) -> None:
    """Show why the executors of JOB, or of one OPERATOR, have their cores, and why they are there.

    For example:
        dask elastic explain flight-delays
        dask elastic explain flight-delays per_route
        dask elastic explain flight-delays --plan
        dask elastic explain flight-delays --snapshots snapshots.jsonl

    For each executor: rows that arrive and that a core can serve per second; the rule that sets the
    number of its cores (the latency target, stability, the GIL, sharing, overload); why these are
    on their workers; its cores at twice the load; and the last decisions that changed them. With
    --plan: the next decision, with the latency, the moved state and the pause that are expected.
    Nothing is changed.
    """
    if plan and (as_json or operator is not None):
        raise click.UsageError("--plan is about the whole job, and its output is text: leave out OPERATOR and --json")
    with connection.client() as client:
        found = find_job(job, client)
        if path is not None:
            recorded = found.snapshots()
            save_snapshots(recorded, path)
            click.echo(f"{counted(len(recorded), 'snapshot')} written to {path}", err=True)
        if plan:
            click.echo(str(found.plan()))
        elif as_json:
            rows = found.explain(operator).to_pandas().to_json(orient="records")
            click.echo(json.dumps(json.loads(rows), indent=2))
        else:
            click.echo(str(found.explain(operator)))
