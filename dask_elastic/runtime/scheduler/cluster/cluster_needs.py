"""What jobs need of a cluster that grows and shrinks with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.cluster_calls import GROWS, ClusterNeed, Keep, NeedOfCluster
from dask_elastic.runtime.scheduler.control_driver import ControlDriver
from dask_elastic.runtime.scheduler.homes.planned_restarts import fixed_nodes, obstacle
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.workers import Workers


class Effort(NamedTuple):
    """What has to be done to empty a worker; the least one is the least effort.

    Parameters
    ----------
    stays : bool
        Whether it is not leaving already.
    stuck, restarting, needed : int
        Jobs that cannot leave it, that leave it by a restart, and that need it.
    cores : int
        Cores that jobs hold there.
    address : str
        Its address.
    """

    stays: bool
    stuck: int
    restarting: int
    needed: int
    cores: int
    address: str


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
        order = sorted((efforts(address) for address, state in states.items() if not state.processing))
        retired = sorted(self.workers.retiring.intersection(states))
        slots = [state.nthreads for state in states.values()]
        return ClusterNeed(
            slots=self.controller.slots_needed if self.jobs.running else 0.0,
            for_tasks=self._for_tasks(call.target_duration),
            jobs=len(self.workers.growth.starting.union(record.name for record in self.jobs.running)),
            per_worker=min(slots, default=0),
            workers=tuple((effort.address, str(states[effort.address].name)) for effort in order),
            restarting=tuple(effort.address for effort in order if effort.restarting and not effort.stuck),
            retired=tuple((address, str(states[address].name)) for address in retired),
        )

    def _for_tasks(self, target_duration: float) -> int:
        self.counts_tasks = True
        try:
            return int(self.workers.scheduler.adaptive_target(target_duration))
        finally:
            self.counts_tasks = False

    def _efforts(self) -> Callable[[str], Effort]:
        """Return a function of an address: what has to be done to empty the worker."""
        stuck: Counter[str] = Counter()
        restarting: Counter[str] = Counter()
        needed: Counter[str] = Counter()
        for record in self.jobs.running:
            nodes = record.nodes
            (stuck if obstacle(record) else restarting).update(nodes[node] for node in fixed_nodes(record))
            needed.update(record.addresses if record.starting else (nodes[node] for node in record.homes.needed))
        retiring, held = self.workers.retiring, self.jobs.held()
        return lambda a: Effort(a not in retiring, stuck[a], restarting[a], needed[a], held.get(a, 0), a)

    async def keep(self, call: Keep) -> None:
        """Let workers stay that were asked to leave."""
        self.workers.retiring.difference_update(call.workers)
