"""``dask elastic resume``: continue a job from its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dask_elastic.cli.chosen_client import chosen_client, say_where, starts_cluster
from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.followed_jobs import interrupted, leave, wait
from dask_elastic.cli.script_client import ScriptClient
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.checkpoint_text import newest_checkpoint
from dask_elastic.runtime.client.resume import resume as resume_job
from dask_elastic.runtime.protocol.job_calls import Describe


@click.command(cls=Command)
@click.argument("url")
@click.option("--name", help="The name of the job; as before if left out.")
@click.option("--number", type=click.IntRange(min=1), metavar="N",
              help="The checkpoint; the newest one that is not damaged if left out.")  # fmt: skip
@click.option("--cores", multiple=True, metavar="OPERATOR=N",
              help="Cores of each executor of an operator; can be repeated. As before if left out.")  # fmt: skip
@click.option("--checkpoint", metavar="FOLDER",
              help="For a savepoint: the new folder of the job's own checkpoints.")  # fmt: skip
@starts_cluster
@click.option("--detach", is_flag=True, help="Do not wait for the job; needs a running scheduler.")
@connected
def resume(
    connection: Connection,
    url: str,
    name: str | None,
    number: int | None,
    cores: tuple[str, ...],
    checkpoint: str | None,
    detach: bool,
    **own: Any,
) -> None:
    """Continue a job from the checkpoints or the savepoint in the folder URL, and wait for it.

    For example:
        dask elastic resume s3://bucket/delays --scheduler tcp://10.0.0.1:8786
        dask elastic resume checkpoints/delays --workers 4
        dask elastic resume checkpoints/delays --number 17 --cores per_plane=2 --detach
        dask elastic resume savepoints/delays --checkpoint checkpoints/delays-2

    The job must have ended, or its cluster must be lost. Topology and options are those of the
    checkpoint; to change them, call dask_elastic.resume in a program. The folder contains pickled
    code, which runs on the cluster: resume only folders that you trust.

    Without an address of a scheduler, or with --workers, --threads or --dashboard-address, the
    command starts a cluster on this machine, which ends with the command. Ctrl-C stops waiting: the
    job continues on an existing cluster, and is stopped with the command's own.

    Exit codes: 0 if the job finished; 1 if it failed or was stopped; 130 after Ctrl-C.
    """
    wanted = _cores(cores)
    folder: dict[str, Any] = {} if checkpoint is None else {"checkpoint": checkpoint}
    failure = None
    with chosen_client(connection, own, detach) as client:
        say_where(client)
        try:
            job = resume_job(url, client, number=number, name=name, cores=wanted, **folder)
            _say_from_where(client, job.name)
            if detach:
                leave(client)
            else:
                failure = wait(client, job.name)
        except KeyboardInterrupt:
            interrupted(client)
            raise
    if failure:
        raise click.ClickException(failure)


def _say_from_where(client: ScriptClient, name: str) -> None:
    status = call_scheduler(client, Describe(name)).checkpoints
    assert status is not None, "a resumed job has checkpoints"
    click.echo(f"Job {name!r}: {newest_checkpoint(status)}.", err=True)


def _cores(given: Sequence[str]) -> dict[str, int] | None:
    """Return the cores as `dask_elastic.resume` takes them."""
    pairs = [text.rpartition("=") for text in given]
    wrong = [text for text, (operator, _, cores) in zip(given, pairs, strict=True) if not operator or not _whole(cores)]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not OPERATOR=N, such as per_plane=2", param_hint="--cores")
    return {operator: int(cores) for operator, _, cores in pairs} or None


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit()
