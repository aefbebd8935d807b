"""The scheduler plugin: adapts `Coordinator` to Dask's hooks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from dask_elastic._version import __version__
from dask_elastic.runtime.config.many_imports import many_imports
from dask_elastic.runtime.config.own_process import leave_out_modules
from dask_elastic.runtime.protocol.calls import HOSTED

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState

    from dask_elastic.dashboard.display import Display
    from dask_elastic.runtime.scheduler.coordinator import Coordinator
    from dask_elastic_plugins.retirement import DaskRetirement

logger = logging.getLogger("dask_elastic.scheduler")

HOLD_MILLISECONDS = 200
"""Interval of resetting the scheduler's idle time while jobs run: Dask counts a scheduler without tasks as idle."""


class ElasticSchedulerPlugin(SchedulerPlugin):
    """Hosts the coordinator of all jobs in a Dask scheduler.

    Notes
    -----
    The coordinator's modules are imported when it starts: clients import this module only to send the plugin.
    """

    name = "dask-elastic-scheduler"
    idempotent = True

    def __init__(self) -> None:
        self.coordinator: Coordinator | None = None
        self._uninstalling: asyncio.Future[None] | None = None
        self._holding: PeriodicCallback | None = None
        self._display: Display | None = None
        self._retirement: DaskRetirement | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Start the coordinator, register its handlers with the scheduler, and open the display."""
        if self.coordinator is not None:
            return  # Dask starts a plugin that a preload has registered a second time, when the scheduler has started
        try:
            with many_imports():
                from dask_elastic.dashboard.display import Display
                from dask_elastic.runtime.scheduler.coordinator import Coordinator, hold
                from dask_elastic_plugins.cluster_view import cluster_view
                from dask_elastic_plugins.retirement import DaskRetirement

            leave_out_modules()
            coordinator = Coordinator(scheduler)
            scheduler.handlers.update(coordinator.handlers())
            scheduler.handlers["elastic_uninstall"] = self.uninstall
            self._retirement = DaskRetirement(scheduler, coordinator)
            self._retirement.install()
            self._holding = PeriodicCallback(hold(scheduler, coordinator), HOLD_MILLISECONDS)
            self._holding.start()
            scheduler.task_metadata[HOSTED] = __version__
            self.coordinator = coordinator
            self._display = Display(scheduler, cluster_view(coordinator))
            self._display.open()
        except Exception:  # a scheduler that cannot host dask_elastic must still run
            logger.exception("dask_elastic could not be set up on the scheduler")

    async def uninstall(self) -> None:
        """Forget all jobs and unregister the handlers; clients call this, as Dask does not notify a removed plugin.

        A second call waits for the first one: the handlers that this removes would be those of a new plugin otherwise.
        """
        if self.coordinator is not None:
            coordinator, self.coordinator = self.coordinator, None
            self._uninstalling = asyncio.ensure_future(self._uninstall(coordinator))
        if self._uninstalling is not None:
            await asyncio.shield(self._uninstalling)

    async def _uninstall(self, coordinator: Coordinator) -> None:
        if self._retirement is not None:
            self._retirement.uninstall()
        if self._display is not None:
            self._display.close()
        await coordinator.close()
        if self._holding is not None:
            self._holding.stop()
        for name in (*coordinator.handlers(), "elastic_uninstall"):
            coordinator.scheduler.handlers.pop(name, None)
        coordinator.scheduler.task_metadata.pop(HOSTED, None)

    def restart(self, scheduler: Scheduler) -> None:
        """Set the scheduler's metadata again, which Dask clears when a client restarts the cluster."""
        if self.coordinator is not None:
            scheduler.task_metadata[HOSTED] = __version__

    async def before_close(self) -> None:
        """Close the display, abandon the jobs, and stop resetting the scheduler's idle time."""
        if self.coordinator is not None:
            self.coordinator.abandon()
        if self._display is not None:
            self._display.close()
        if self._holding is not None:
            self._holding.stop()

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any) -> None:
        """Report the removal of a worker to the coordinator."""
        if self.coordinator is not None:
            self.coordinator.node_lost(worker)

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[WorkerState]) -> list[WorkerState]:
        """Return the workers that host neither homes nor cores of running jobs; scaling down keeps the others."""
        if self.coordinator is None:
            return workers
        used = self.coordinator.used_workers()
        return [worker for worker in workers if worker.address not in used]
