"""The scheduler plugin: adapts `Coordinator` to Dask's hooks."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from dask_elastic.dashboard.cluster_view import ClusterView, JobCard
from dask_elastic.dashboard.display import Display
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.runtime.scheduler.coordinator import Coordinator, hold

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState

    from dask_elastic.runtime.scheduler.job_record import JobRecord

logger = logging.getLogger("dask_elastic.scheduler")

HOLD_MILLISECONDS = 200
"""Interval of resetting the scheduler's idle time while jobs run: Dask counts a scheduler without tasks as idle."""


class ElasticSchedulerPlugin(SchedulerPlugin):
    """Hosts the coordinator of all jobs in a Dask scheduler."""

    name = "dask-elastic-scheduler"
    idempotent = True

    def __init__(self) -> None:
        self.coordinator: Coordinator | None = None
        self._holding: PeriodicCallback | None = None
        self._display: Display | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Start the coordinator, register its handlers with the scheduler, and open the display."""
        try:
            coordinator = Coordinator(scheduler)
            scheduler.handlers.update(coordinator.handlers())
            scheduler.handlers["elastic_uninstall"] = self.uninstall
            self._holding = PeriodicCallback(hold(scheduler, coordinator), HOLD_MILLISECONDS)
            self._holding.start()
            self.coordinator = coordinator
            self._display = Display(scheduler, cluster_view(coordinator))
            self._display.open()
        except Exception:  # a scheduler that cannot host dask_elastic must still run
            logger.exception("dask_elastic could not be set up on the scheduler")

    async def uninstall(self) -> None:
        """Forget all jobs and unregister the handlers; clients call this, as Dask does not notify a removed plugin."""
        if self.coordinator is None:
            return
        coordinator, self.coordinator = self.coordinator, None
        if self._display is not None:
            self._display.close()
        await coordinator.close()
        if self._holding is not None:
            self._holding.stop()
        for name in (*coordinator.handlers(), "elastic_uninstall"):
            coordinator.scheduler.handlers.pop(name, None)

    async def before_close(self) -> None:
        """Close the display, and stop resetting the scheduler's idle time."""
        if self._display is not None:
            self._display.close()
        if self._holding is not None:
            self._holding.stop()

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any) -> None:
        """Report the removal of a worker to the coordinator."""
        if self.coordinator is not None:
            self.coordinator.node_lost(worker)

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[WorkerState]) -> list[WorkerState]:
        """Return the workers that no running job uses, so that scaling down keeps the others."""
        if self.coordinator is None:
            return workers
        needed = {address for record in self.coordinator.running for address in record.nodes}
        return [worker for worker in workers if worker.address not in needed]


def cluster_view(coordinator: Coordinator) -> ClusterView:
    """Return the dashboard's view of a coordinator."""
    controller = coordinator.controller
    return ClusterView(
        history=controller.history,
        list_cards=lambda: (_card(record, coordinator) for record in coordinator.jobs.values()),
        list_decisions=controller.log.of,
        problem=lambda: controller.error,
    )


def _card(record: JobRecord, coordinator: Coordinator) -> JobCard:
    return JobCard(
        name=record.name,
        status=record.status.value,
        began=record.began,
        oversubscribed=record.oversubscribed,
        error=None if record.error is None else _text(record.error),
        cores=lambda: _cores(record),
        handoffs=lambda: coordinator.epochs.progress(record),
        recoveries=lambda: _recoveries(record),
    )


def _cores(record: JobRecord) -> dict[tuple[str, int], dict[str, int]]:
    """Return the cores of each executor, by node address."""
    nodes = record.nodes
    return {
        executor: {nodes[node]: count for node, count in by_node.items()} for executor, by_node in record.cores.items()
    }


def _recoveries(record: JobRecord) -> dict[tuple[str, int], tuple[int, float | None, float | None]]:
    """Return, for each executor, its number of recoveries, and p50 and p99 of their seconds."""
    return {
        (measure.operator, measure.executor): (measure.recovered, measure.recovery_p50, measure.recovery_p99)
        for _, report in record.reports.values()
        for measure in report.executors
    }


@functools.lru_cache(maxsize=64)
def _text(error: bytes) -> str:
    """Return the text of a pickled error, whose class may exist only at the client and the workers."""
    try:
        found = load_error(error)
    except Exception as reason:  # unpickling may raise anything
        return f"the scheduler cannot unpickle the error ({reason}); job.wait() raises it"
    return f"{type(found).__name__}: {found}"
