"""Registration of the plugins that host dask_elastic on a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import dask.config
from distributed.comm.core import CommClosedError

from dask_elastic.runtime.client.call import check_connected, scheduler_lost
from dask_elastic.runtime.protocol.remote_errors import text_of

if TYPE_CHECKING:
    from distributed import Client


class Installation:
    """The registration of the plugins on a client's cluster: workers import the engine while the client goes on.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.

    Raises
    ------
    SchedulerLost
        If the client has lost the scheduler.
    """

    def __init__(self, client: Client):
        self._client = client
        path = dask.config.get("elastic.installer")
        module, _, function = path.rpartition(".")
        self._finish = self._call(lambda: getattr(importlib.import_module(module), function)(client))

    def finish(self) -> None:
        """Wait until the scheduler and all workers that do not hang host dask_elastic.

        Raises
        ------
        SchedulerLost
            If the client has lost the scheduler.
        """
        if self._finish is not None:
            self._call(self._finish)

    def _call(self, step: Callable[[], Callable[[], None] | None]) -> Callable[[], None] | None:
        check_connected(self._client)
        try:
            return step()
        except CommClosedError as error:
            raise scheduler_lost(self._client, text_of(error)) from error


def install(client: Client) -> None:
    """Register the plugins that host dask_elastic on a cluster; do nothing if they are registered already.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.

    Raises
    ------
    SchedulerLost
        If the client has lost the scheduler.
    """
    Installation(client).finish()
