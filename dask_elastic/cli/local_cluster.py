"""A local cluster of worker processes that ends with the command that started it."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from distributed import LocalCluster


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
    # because starting it unblocks the signal.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Port .* is already in use")
            cluster = LocalCluster(**{name: value for name, value in options.items() if value is not None})
    except BaseException:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        raise
    with cluster:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield cluster
