"""``dask elastic state``: print or save the state of an operator."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import computes, job_names
from dask_elastic.cli.rows import SHOWN, RowFile, output
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.job import job as find_job
from dask_elastic.runtime.client.job_state import JobState, rows_of_key
from dask_elastic.runtime.protocol.tables import total_rows
from dask_elastic.vocab.errors import StateError


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.argument("operator", shell_complete=computes)
@click.option("--key", "key", multiple=True, metavar="VALUE",
              help="Only the rows of this key; repeat it for several key columns, in their order.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), metavar="N",
              help="The largest number of rows; 20 in a table, all in a file and as JSON.")  # fmt: skip
@click.option(
    "--output", "path", type=RowFile(), metavar="FILE", help="Write the rows to a .parquet, .csv or .arrow file."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of rows.")
@connected
def state(
    connection: Connection,
    job: str,
    operator: str,
    key: tuple[str, ...],
    limit: int | None,
    path: Path | None,
    as_json: bool,
) -> None:
    """Show the state of a stateful OPERATOR of JOB: the key columns and the results, a row per key.

    For example:
        dask elastic state word-count per_word --limit 5
        dask elastic state word-count per_word --key elastic
        dask elastic state word-count per_word --output counts.parquet

    The state is readable while the job runs, and after it has ended until it is forgotten. Rows are
    in no particular order. VALUE is converted to the type of the key column. It is an error if no
    row with the key has arrived.
    """
    with connection.client() as client:
        read = find_job(job, client).state(operator)
        if key:
            table = _rows(read, key)
            if not table.num_rows:
                raise click.ClickException(f"operator {operator!r} of job {job!r} has no state for {', '.join(key)!r}")
        else:
            with progress_bar(f"Reading the state of {operator}"):
                shown = limit if limit is not None or path is not None or as_json else SHOWN
                table = read.to_arrow() if shown is None else read.head(shown)
    output(table, limit, path, as_json, total_rows(table))


def _rows(read: JobState, key: Sequence[str]) -> pa.Table:
    """Return the rows of a key whose values are given as text.

    Raises
    ------
    StateError
        If no interpretation of the texts has the types of the key columns.
    """
    refusal: StateError | None = None
    for values in itertools.product(*map(_interpretations, key)):
        try:
            return rows_of_key(read, values)
        except StateError as error:
            refusal = error
    raise refusal or StateError("a key has at least one value")


def _interpretations(text: str) -> Iterator[Any]:
    """Yield the values that a text may stand for: a JSON value, a time, the text itself."""
    with suppress(json.JSONDecodeError):
        value = json.loads(text)
        if not isinstance(value, dict | list):
            yield value
    for kind in (datetime, date):
        with suppress(ValueError):
            yield kind.fromisoformat(text)
    yield text
