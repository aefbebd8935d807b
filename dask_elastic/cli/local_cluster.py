"""A cluster of worker processes on this machine that ends with the command that started it."""

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
    """Start worker processes; whatever happens, none of them stays behind.

    Parameters
    ----------
    **options
        As `distributed.LocalCluster`; those that are None are left to it.
    """
    # Ctrl-C goes to every process of a terminal. The workers inherit that it is held back, and this process ends them;
    # what comes while they start is delivered when there is something to end. Starting the tracker undoes such a mask.
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
