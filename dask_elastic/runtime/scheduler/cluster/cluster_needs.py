"""What jobs need of a cluster that grows and shrinks with them."""

from __future__ import annotations

from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.cluster_calls import GROWS, ClusterNeed, Keep, NeedOfCluster
from dask_elastic.runtime.scheduler.control_driver import ControlDriver
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.workers import Workers


class ClusterNeeds:
    """Answers what jobs need, and which workers should leave first.

    Parameters
    ----------
    workers : Workers
        The workers.
    jobs : JobTable
        The jobs.
    controller : ControlDriver
        Knows what the jobs need.

    Attributes
    ----------
    counts_tasks : bool
        Whether Dask is asked at this moment what its own tasks need, so that jobs do not count.
    """

    def __init__(self, workers: Workers, jobs: JobTable, controller: ControlDriver):
        self.workers = workers
        self.jobs = jobs
        self.controller = controller
        self.counts_tasks = False
        # A cluster may announce that it grows before the first job brings this module along.
        announced = workers.scheduler.task_metadata.get(GROWS)
        if announced is not None:
            workers.growth.announce(announced["workers"])

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [NeedOfCluster.handled_by(self.need), Keep.handled_by(self.keep)]

    async def need(self, call: NeedOfCluster) -> ClusterNeed:
        """Return what the running jobs and Dask's own tasks need."""
        self.workers.growth.announce(call.workers)
        states = self.workers.scheduler.workers
        order = sorted((address for address, state in states.items() if not state.processing), key=self._effort)
        slots = [state.nthreads for state in states.values()]
        return ClusterNeed(
            slots=self.controller.slots_needed if self.jobs.running else 0.0,
            for_tasks=self._for_tasks(call.target_duration),
            jobs=len(self.jobs.running) + self.workers.growth.waiting,
            per_worker=min(slots, default=0),
            workers=tuple((address, str(states[address].name)) for address in order),
        )

    def _for_tasks(self, target_duration: float) -> int:
        self.counts_tasks = True
        try:
            return int(self.workers.scheduler.adaptive_target(target_duration))
        finally:
            self.counts_tasks = False

    def _effort(self, address: str) -> tuple[bool, int, int, str]:
        """Return what workers are ordered by that may leave: the jobs that need one count most, then their cores."""
        needed = sum(record.needs(address) for record in self.jobs.running)
        return address not in self.workers.retiring, needed, self.jobs.held().get(address, 0), address

    async def keep(self, call: Keep) -> None:
        """Let workers stay that were asked to leave."""
        self.workers.retiring.difference_update(call.workers)
