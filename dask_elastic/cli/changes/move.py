"""``dask elastic move``: move shards of an executor to another task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dask_elastic.cli.changes.ended_jobs import refuse_ended, refused_if_ended
from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import job_names, stateful_operators, worker_addresses
from dask_elastic.cli.terminal.number_ranges import number_ranges
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.client.job import job as find_job
from dask_elastic.vocab.counted import counted
from dask_elastic.vocab.errors import MoveRefused, UnknownOperator

Task = dict[str, Any]
"""A task as a row of `Job.assignment`."""


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.argument("operator", shell_complete=stateful_operators)
@click.argument("shards", nargs=-1, type=click.IntRange(min=0), metavar="[SHARD]...")
@click.option("--all", "all_shards", is_flag=True, help="Move all shards of the executor.")
@click.option("--executor", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="The executor of the operator.")  # fmt: skip
@click.option("--task", type=click.IntRange(min=0), metavar="N", help="The task that gets the shards.")
@click.option("--worker", metavar="ADDRESS", shell_complete=worker_addresses,
              help="The worker whose tasks get the shards, in equal parts.")  # fmt: skip
@connected
def move(
    connection: Connection,
    job: str,
    operator: str,
    shards: tuple[int, ...],
    all_shards: bool,
    executor: int,
    task: int | None,
    worker: str | None,
) -> None:
    """Move SHARDs of a stateful OPERATOR of JOB to another task of their executor.

    For example:
        dask elastic move word-count per_word 3 7 --task 1
        dask elastic move word-count per_word 3 --executor 1 --worker tcp://10.0.0.2:40001
        dask elastic move word-count per_word --all --task 0

    An executor has a task for each of its cores. "dask elastic topology JOB --tasks" lists tasks and
    shards. A worker needs a core of the executor first, see "dask elastic set-cores". The command
    returns when the moves have begun; the job goes on meanwhile. Balancing may move shards again.
    """
    if bool(shards) == all_shards:
        raise click.UsageError("name the SHARDs to move, or give --all")
    if (task is None) == (worker is None):
        raise click.UsageError("say where the shards go: give either --task or --worker")
    with connection.client() as client:
        found = find_job(job, client)
        tasks = _tasks(found, operator, executor)
        refuse_ended(found, "shards")
        targets = [task] if task is not None else _tasks_on(tasks, str(worker), f"{operator}[{executor}]")
        owner = {shard: one["task"] for one in tasks for shard in one["shards"]}
        chosen = sorted(owner) if all_shards else dict.fromkeys(shards)
        elsewhere = [shard for shard in chosen if owner.get(shard) not in targets]
        with refused_if_ended():
            moved, refused = _move(found, operator, executor, elsewhere, targets)
    for target, numbers in moved.items():
        which, verb = ("Shard", "moves") if len(numbers) == 1 else ("Shards", "move")
        click.echo(f"{which} {number_ranges(numbers)} of {operator}[{executor}] {verb} to task {target}.")
    if refused:
        more = f"; {counted(len(refused) - 1, 'more shard')} cannot move either" if len(refused) > 1 else ""
        raise MoveRefused(f"{refused[0]}{more}")
    if not elsewhere:
        click.echo("No shard has to move: they are where they should be.")


def _tasks(job: Job, operator: str, executor: int) -> list[Task]:
    """Return the tasks of an executor.

    Raises
    ------
    UnknownOperator
        If the job has no such stateful operator or executor.
    """
    every = job.assignment().to_dict("records")
    operators = sorted({one["operator"] for one in every})
    if operator not in operators:
        raise UnknownOperator(f"job {job.name!r} has no stateful operator {operator!r}: choose from {operators}")
    executors = sorted({one["executor"] for one in every if one["operator"] == operator})
    if executor not in executors:
        raise UnknownOperator(f"operator {operator!r} has the executors 0 to {executors[-1]}, not {executor}")
    return [one for one in every if (one["operator"], one["executor"]) == (operator, executor)]


def _tasks_on(tasks: Sequence[Task], worker: str, executor: str) -> list[int]:
    found = [one["task"] for one in tasks if one["node"] == worker]
    if not found:
        workers = sorted({one["node"] for one in tasks})
        raise MoveRefused(
            f"{executor} has no task on {worker!r}, its tasks are on {workers}. Give it a core there first with "
            '"dask elastic set-cores".'
        )
    return found


def _move(
    job: Job, operator: str, executor: int, shards: Sequence[int], targets: Sequence[int]
) -> tuple[dict[int, list[int]], list[MoveRefused]]:
    """Begin to move shards; return those that move by their target, and the refusals."""
    moved: dict[int, list[int]] = {}
    refused: list[MoveRefused] = []
    with progress_bar("Moving shards", len(shards)) as advance:
        for number, shard in enumerate(shards):
            target = targets[number % len(targets)]
            try:
                job.move_shard(operator, shard, target, executor)
            except MoveRefused as refusal:
                refused.append(refusal)
            else:
                moved.setdefault(target, []).append(shard)
            advance(number + 1)
    return moved, refused
