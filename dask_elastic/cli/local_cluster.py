"""A local cluster of worker processes that ends with the command that started it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from distributed import LocalCluster

from dask_elastic.cli.terminal.progress_bar import progress_bar

KILL_SECONDS = 2.0
"""The cluster's own way to close follows after that."""


@contextmanager
def local_cluster(**options: Any) -> Iterator[LocalCluster]:
    """Start worker processes, and end all of them after the block, also after an error or Ctrl-C.

    Parameters
    ----------
    **options
        As `distributed.LocalCluster`; options that are None keep its defaults.

    Yields
    ------
    LocalCluster
        The cluster.
    """
    # A terminal sends Ctrl-C to all of its processes. Workers inherit the blocked signal, so that only this process
    # reacts and ends them; a Ctrl-C while they start is delivered after that. The resource tracker is started first,
    # because starting it unblocks the signal; the thread of the progress bar is started after that and blocks it too.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with progress_bar("Starting a local cluster"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Port .* is already in use")
            cluster = LocalCluster(**{name: value for name, value in options.items() if value is not None})
    except BaseException:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        raise
    handler = signal.getsignal(signal.SIGINT)
    try:
        with cluster:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            yield cluster
    finally:
        logging.disable(logging.NOTSET)
        if signal.getsignal(signal.SIGINT) is not handler:
            signal.signal(signal.SIGINT, handler)


def kill_workers(cluster: LocalCluster) -> None:
    """Kill the worker processes of a local cluster that is about to close, so that it closes at once.

    Until then nothing is logged, since all errors are consequences.

    Parameters
    ----------
    cluster : LocalCluster
        The cluster, as `local_cluster` yields it.
    """
    logging.disable(logging.CRITICAL)

    async def kill() -> None:
        # Workers in which user code runs would take seconds to end by themselves.
        killed = (nanny.kill(timeout=0, reason="interrupted") for nanny in cluster.workers.values())
        await asyncio.wait_for(asyncio.gather(*killed, return_exceptions=True), KILL_SECONDS)

    with contextlib.suppress(TimeoutError):
        cluster.sync(kill)
