"""``dask elastic dead-letters``: print or save the rows on which user code raised."""

from __future__ import annotations

from pathlib import Path

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import failed_operators, job_names
from dask_elastic.cli.json_text import json_text
from dask_elastic.cli.rows import RowFile, output
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.terminal.console_table import ConsoleTable
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.cli.terminal.quantities import count
from dask_elastic.runtime.client.job import job as find_job


@click.command(name="dead-letters", cls=Command)
@click.argument("job", shell_complete=job_names)
@click.argument("operator", required=False, shell_complete=failed_operators)
@click.option("--limit", type=click.IntRange(min=1), metavar="N",
              help="The largest number of rows; 20 in a table, all in a file and as JSON.")  # fmt: skip
@click.option(
    "--output", "path", type=RowFile(), metavar="FILE", help="Write the rows to a .parquet, .csv or .arrow file."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of rows; without OPERATOR, the counts.")
@connected
def dead_letters(
    connection: Connection, job: str, operator: str | None, limit: int | None, path: Path | None, as_json: bool
) -> None:
    """Show the rows of JOB on which user code raised, with the reasons.

    For example:
        dask elastic dead-letters word-count
        dask elastic dead-letters word-count parse --limit 5
        dask elastic dead-letters word-count parse --output failed.parquet

    Jobs that were submitted with on_error="skip" have dead letters; others fail at the first error.
    Without OPERATOR, the command prints the number of rows of each operator. With it, the rows: their
    columns, and the reason in the column __error. The number is exact, but of many large rows only
    the first are kept: 64 MiB on each worker.
    """
    if operator is None and (path is not None or limit is not None):
        raise click.UsageError("--output and --limit are for the rows of one operator: name the OPERATOR")
    with connection.client() as client:
        found = find_job(job, client)
        if operator is None:
            counts: dict[str, int] = found.dead_letters()
        else:
            with progress_bar(f"Reading the dead letters of {operator}"):
                rows = found.dead_letters(operator)
    if operator is not None and (rows.num_rows or as_json or path is not None):
        output(rows, limit, path, as_json)
    elif operator is not None:
        click.echo(f"Operator {operator!r} of job {job!r} has no dead letters.")
    elif as_json:
        click.echo(json_text(counts))
    elif counts:
        show(ConsoleTable(("operator", "rows"), [[(name, "bold"), count(number)] for name, number in counts.items()]))
    else:
        click.echo(f"Job {job!r} has no dead letters.")
