"""``dask elastic move-groups``: move key groups to another executor of their operator."""

from __future__ import annotations

from typing import Literal

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import job_names, stateful_operators
from dask_elastic.cli.terminal.number_ranges import number_ranges
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.cli.terminal.quantities import duration, size
from dask_elastic.migration.strategy import BETWEEN_EXECUTORS
from dask_elastic.runtime.client.job import job as find_job


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.argument("operator", shell_complete=stateful_operators)
@click.argument("groups", nargs=-1, required=True, type=click.IntRange(min=0), metavar="GROUP...")
@click.option("--executor", type=click.IntRange(min=0), required=True, metavar="N",
              help="The executor of the operator that gets the groups.")  # fmt: skip
@click.option("--migration", type=click.Choice(BETWEEN_EXECUTORS),
              help="How they move; by default as the job was submitted.")  # fmt: skip
@connected
def move_groups(
    connection: Connection,
    job: str,
    operator: str,
    groups: tuple[int, ...],
    executor: int,
    migration: Literal["progressive", "synchronised"] | None,
) -> None:
    """Move key GROUPs of a stateful OPERATOR of JOB, with their state, to another executor.

    For example:
        dask elastic move-groups word-count per_word 3 7 --executor 1
        dask elastic move-groups word-count per_word 3 --executor 1 --migration synchronised

    The job must have been submitted with paradigm="resource-centric". "dask elastic topology JOB
    --tasks" lists the groups of each executor, as shards. The job goes on meanwhile. The command
    returns when the groups are there.
    """
    with connection.client() as client:
        found = find_job(job, client)
        with progress_bar(f"Moving key groups of {operator}"):
            moved = found.move_groups(operator, dict.fromkeys(groups), executor, migration)
    noun, verb = ("group", "belongs") if moved.groups == 1 else ("groups", "belong")
    click.echo(
        f"Key {noun} {number_ranges({*groups})} of {operator} {verb} to executor {executor}: {size(moved.nbytes)} of "
        f"state moved, and rows of a group waited for {duration(moved.pause)} at most."
    )
