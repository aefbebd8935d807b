"""Shell completion of jobs, operators and workers: the names that the cluster knows.

A completion that cannot reach the scheduler at once completes nothing, silently: the shell shows the line being typed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import click
from distributed import Client

from dask_elastic.cli.connection import Connection
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.job import jobs
from dask_elastic.runtime.protocol.job_calls import Describe
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.vocab.errors import ElasticError

COMPUTE = "compute"
COMPLETION_SECONDS = 2.0
"""Timeout for connecting to the scheduler."""


def job_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of jobs that begin with a text; click calls it."""
    return _found(ctx, incomplete, lambda client: [job.name for job in jobs(client)])


def stateful_operators(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the stateful operators with executors of their own that begin with a text; click calls it."""
    return _found(
        ctx, incomplete, lambda client: [one.name for one in _described(ctx, client).components if one.kind == COMPUTE]
    )


def computes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return all stateful operators that begin with a text, fused ones as well; click calls it."""
    return _found(
        ctx, incomplete, lambda client: [name for one in _described(ctx, client).components for name in one.computes]
    )


def failed_operators(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the operators with dead letters that begin with a text; click calls it."""
    return _found(ctx, incomplete, lambda client: _described(ctx, client).dead_letters)


def worker_addresses(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the addresses of workers that begin with a text; click calls it."""
    return _found(ctx, incomplete, lambda client: client.nthreads())


def _described(ctx: click.Context, client: Client) -> JobDescription:
    return call_scheduler(client, Describe(ctx.params["job"]))


def _found(ctx: click.Context, incomplete: str, names: Callable[[Client], Iterable[str]]) -> list[str]:
    given = ctx.params
    logging.disable(logging.CRITICAL)
    try:
        connection = Connection(
            given.get("scheduler"), given.get("tls_ca_file"), given.get("tls_cert"), given.get("tls_key")
        )
        with connection.client(seconds=COMPLETION_SECONDS) as client:
            return sorted(name for name in names(client) if name.startswith(incomplete))
    except (click.ClickException, ElasticError, OSError):
        return []
    finally:
        logging.disable(logging.NOTSET)
