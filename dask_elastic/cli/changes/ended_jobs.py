"""Changes of jobs that have ended, which commands report as errors: no line says then that something changes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.client.job_commands import unchanged


def refuse_ended(job: Job, what: str) -> None:
    """Refuse to change a job that has ended.

    Parameters
    ----------
    job : Job
        The job.
    what : str
        What would change, such as "shards".

    Raises
    ------
    ClickException
        If the job has ended; names it.
    """
    if text := unchanged(job.name, job.status, what):
        raise click.ClickException(text)


@contextmanager
def refused_if_ended() -> Iterator[None]:
    """Turn the warning that a job has ended, so that nothing changes, into the error of a command.

    Raises
    ------
    ClickException
        If the job has ended; names it.

    Examples
    --------
    >>> with refused_if_ended():
    ...     warnings.warn("job 'words' has finished: its cores do not change")
    Traceback (most recent call last):
        ...
    click.exceptions.ClickException: job 'words' has finished: its cores do not change
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "job .*: its [a-z]+ do not change", UserWarning)
        try:
            yield
        except UserWarning as warning:
            raise click.ClickException(str(warning)) from warning
