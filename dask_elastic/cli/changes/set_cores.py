"""``dask elastic set-cores``: set the cores of an operator's executors while the job runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from dask_elastic.cli.changes.ended_jobs import refused_if_ended
from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.job_completion import job_names, stateful_operators
from dask_elastic.runtime.client.job import job as find_job
from dask_elastic.vocab.counted import counted


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.argument("operator", shell_complete=stateful_operators)
@click.argument("cores", nargs=-1, required=True, metavar="CORES...")
@click.option("--executor", type=click.IntRange(min=0), metavar="N",
              help="Only this executor of the operator; all of them if left out.")  # fmt: skip
@connected
def set_cores(connection: Connection, job: str, operator: str, cores: tuple[str, ...], executor: int | None) -> None:
    """Set the cores of each executor of a stateful OPERATOR of JOB.

    For example:
        dask elastic set-cores word-count per_word 4
        dask elastic set-cores word-count per_word tcp://10.0.0.2:40001=2 tcp://10.0.0.3:40001=1
        dask elastic set-cores word-count per_word auto

    CORES is a number, allocated first on the executor's home; or WORKER=NUMBER for each worker, by
    address; or "auto". The control loop then no longer changes the cores of these executors, until
    "auto" returns them to it.
    """
    wanted = _cores(cores)
    of = f"each executor of {operator}" if executor is None else f"{operator}[{executor}]"
    with connection.client() as client, refused_if_ended():
        find_job(job, client).set_cores(operator, wanted, executor)
    if isinstance(wanted, str):
        click.echo(f"The control loop sets the cores of {of}.")
    else:
        number = sum(wanted.values()) if isinstance(wanted, dict) else wanted
        click.echo(f"{counted(number, 'core')} for {of}.")


def _cores(given: Sequence[str]) -> int | dict[str, int] | Literal["auto"]:
    """Return the cores as `Job.set_cores` takes them."""
    pairs = [text.rpartition("=") for text in given]
    try:
        if all(address for address, _, _ in pairs):
            return {address: int(count) for address, _, count in pairs}
        if len(given) == 1:
            return "auto" if given[0] == "auto" else int(given[0])
    except ValueError:
        pass  # reported below
    raise click.BadParameter(
        f'{" ".join(given)!r} is neither a number, nor WORKER=NUMBER for each worker, nor "auto"',
        param_hint="CORES",
    )
