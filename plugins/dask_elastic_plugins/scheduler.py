"""The scheduler plugin: adapts `Coordinator` to Dask's hooks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from dask_elastic.runtime.coordinator import Coordinator, hold

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState

logger = logging.getLogger("dask_elastic.scheduler")

HOLD_MILLISECONDS = 200


class ElasticSchedulerPlugin(SchedulerPlugin):
    """Hosts the jobs' coordinator in a Dask scheduler."""

    name = "dask-elastic-scheduler"
    idempotent = True

    def __init__(self) -> None:
        self.coordinator: Coordinator | None = None
        self._holding: PeriodicCallback | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Take up the scheduler's handlers."""
        try:
            coordinator = Coordinator(scheduler)
            scheduler.handlers.update(coordinator.handlers())
            scheduler.handlers["elastic_uninstall"] = self.uninstall
            self._holding = PeriodicCallback(hold(scheduler, coordinator), HOLD_MILLISECONDS)
            self._holding.start()
            self.coordinator = coordinator
        except Exception:  # a scheduler that cannot host us must still run
            logger.exception("dask_elastic could not be set up on the scheduler")

    async def uninstall(self) -> None:
        """Forget every job and give the handlers back; Dask itself never tells a plugin that it is removed."""
        if self.coordinator is None:
            return
        coordinator, self.coordinator = self.coordinator, None
        await coordinator.close()
        if self._holding is not None:
            self._holding.stop()
        for name in (*coordinator.handlers(), "elastic_uninstall"):
            coordinator.scheduler.handlers.pop(name, None)

    async def before_close(self) -> None:
        """Stop what the plugin runs by itself."""
        if self._holding is not None:
            self._holding.stop()

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any) -> None:
        """Fail the jobs that ran on a worker that has left."""
        if self.coordinator is not None:
            self.coordinator.node_lost(worker)

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[WorkerState]) -> list[WorkerState]:
        """Keep the workers of running jobs out of any scaling down."""
        if self.coordinator is None:
            return workers
        needed = {address for record in self.coordinator.running for address in record.nodes}
        return [worker for worker in workers if worker.address not in needed]
