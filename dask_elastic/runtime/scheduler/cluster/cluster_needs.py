"""What jobs need of a cluster that grows and shrinks with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.cluster_calls import GROWS, ClusterNeed, Keep, NeedOfCluster
from dask_elastic.runtime.scheduler.control_driver import ControlDriver
from dask_elastic.runtime.scheduler.homes.planned_restarts import fixed_nodes, obstacle
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
        efforts = self._efforts()
        order = sorted((address for address, state in states.items() if not state.processing), key=efforts)
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

    def _efforts(self) -> Callable[[str], tuple[bool, int, int, int, int, str]]:
        """Return a function of an address: what workers are ordered by that may leave.

        Jobs that cannot leave one count most, then those that have to restart for it, then those that need it, then
        their cores.
        """
        stuck: Counter[str] = Counter()
        restarting: Counter[str] = Counter()
        needed: Counter[str] = Counter()
        for record in self.jobs.running:
            nodes = record.nodes
            (stuck if obstacle(record) else restarting).update(nodes[node] for node in fixed_nodes(record))
            needed.update(record.addresses if record.starting else (nodes[node] for node in record.homes.needed))
        retiring, held = self.workers.retiring, self.jobs.held()
        return lambda a: (a not in retiring, stuck[a], restarting[a], needed[a], held.get(a, 0), a)

    async def keep(self, call: Keep) -> None:
        """Let workers stay that were asked to leave."""
        self.workers.retiring.difference_update(call.workers)
