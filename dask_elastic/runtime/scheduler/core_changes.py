"""Changes of the cores and shards of running jobs: by users, by the control loop, and away from retired workers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dask_elastic.planning.new_home import SlotUse, following_cores
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, text_of
from dask_elastic.runtime.scheduler.cluster.occupant import occupants
from dask_elastic.runtime.scheduler.job_record import ExecutorKey, JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab.errors import ElasticError, MoveRefused, NodeLost, PlanningError, UnknownOperator

logger = logging.getLogger("dask_elastic.scheduler")

AUTO = "auto"
"""Given as a number of cores: the control loop chooses it."""


class CoreChanges:
    """Changes the cores of executors, and moves their shards.

    Parameters
    ----------
    workers : Workers
        The workers and their slots.
    jobs : JobTable
        The jobs, which hold cores.
    calls : WorkerCalls
        Calls the homes.
    """

    def __init__(self, workers: Workers, jobs: JobTable, calls: WorkerCalls):
        self.workers = workers
        self.jobs = jobs
        self.calls = calls

    # by users

    async def set_cores(self, job: str, operator: str, cores: Any, executor: int | None = None) -> None:
        """Set the cores of executors and pin them; of a job that has ended, only the call is checked.

        Parameters
        ----------
        job, operator : str
            The stateful operator of a job.
        cores : int, dict of str to int, or "auto"
            Cores of each executor; or by the address of the node; or the executors are no longer pinned.
        executor : int or None
            One executor, or all.

        Raises
        ------
        PlanningError
            If the cores make no sense, or are more of an executor than the workers of the job have slots; or if the job
            is restarting.
        NodeLost
            If a worker that is to have the cores, or the home, has left the cluster.
        UnknownOperator
            If there is no such operator or executor.
        """
        record = self.jobs.record(job)
        _check_elastic(record)
        found = homes(record, operator, executor)
        if not record.live:
            return
        if cores != AUTO and _restarts(record):
            raise PlanningError(
                f"job {record.name!r} is restarting: its cores change only while it is running. Try again later."
            )
        for index, _ in found:
            key = operator, index
            async with record.changing[key]:
                if cores == AUTO:
                    record.pinned.discard(key)
                    continue
                wanted = self._wanted(record, key, cores)
                await self._enact(record, key, wanted)
                record.pinned.add(key)
                record.pinned_cores[key] = sum(wanted.values())

    async def restore_pinned(self, record: JobRecord) -> None:
        """Give executors the cores that a user has set, after a restart; errors are logged.

        A generation begins with the cores of the submission. If the workers have fewer slots by now, an executor gets
        as many cores as there are slots.
        """
        generation = record.spec.generation
        for key in sorted(record.pinned) if record.elastic else ():
            async with record.changing[key]:
                # A user may have changed them meanwhile.
                if record.live and record.runs(generation) and key in record.pinned and key in record.cores:
                    await self._restore(record, key, record.pinned_cores[key])

    async def _restore(self, record: JobRecord, key: ExecutorKey, cores: int) -> None:
        operator, index = key
        given = min(cores, self._most(record))
        if given < cores:
            what = "job %r: %s[%d] gets %d cores: its workers have no slots any more for the %d cores that a user set"
            logger.warning(what, record.name, operator, index, given, cores)
        if given == sum(record.cores[key].values()):
            return
        try:
            await self._enact(record, key, self._of_number(record, key, given))
        except (ElasticError, Relayed) as error:
            what = "job %r: %s[%d] has other cores than a user set: %s"
            logger.warning(what, record.name, operator, index, text_of(error))

    def _wanted(self, record: JobRecord, key: ExecutorKey, cores: Any) -> dict[int, int]:
        if isinstance(cores, dict):
            unknown = [address for address in cores if address not in record.addresses]
            if unknown:
                raise PlanningError(f"{unknown[0]!r} is no node of job {record.name!r}: choose from {record.addresses}")
            left = [address for address, count in cores.items() if count and address not in self.workers]
            if left:
                raise NodeLost(f"worker {left[0]} has left the cluster: job {record.name!r} gets no cores there")
            leaving = [address for address, count in cores.items() if count and self.workers.leaving(address)]
            if leaving:
                raise PlanningError(f"worker {leaving[0]} is about to leave: it gets no more cores")
            wanted = {record.nodes.index(address): _count(count, 0) for address, count in cores.items()}
            if not any(wanted.values()):
                raise PlanningError(f"an executor keeps at least one core, but {cores} was requested")
            self._check_fit(record, key, sum(wanted.values()))
            return wanted
        count = _count(cores, 1)
        self._check_fit(record, key, count)
        return self._of_number(record, key, count)

    def _check_fit(self, record: JobRecord, key: ExecutorKey, cores: int) -> None:
        """Raise if an executor would have more cores than the workers of its job have slots.

        Executors may share slots with each other; tasks of one executor that do so gain nothing, as `submit` says.
        """
        most = self._most(record)
        if cores > most and any(address in self.workers for address in record.addresses):
            raise PlanningError(
                f"{key[0]}[{key[1]}] of job {record.name!r} would have {cores} cores, more than the workers of the job "
                f"have slots, which are {most}. Give at most {most}, or add workers; tasks that share a slot gain "
                "nothing."
            )

    def _most(self, record: JobRecord) -> int:
        """Return the slots of a job's workers; one at least, also if all of them are about to leave."""
        return max(1, sum(self.workers.slots(address) for address in record.addresses if address in self.workers))

    def _of_number(self, record: JobRecord, key: ExecutorKey, cores: int) -> dict[int, int]:
        """Keep the executor's cores as far as wanted, home first; then take free slots at home, then on other nodes."""
        operator, index = key
        home = record.homes.node(operator, index)
        held = record.cores[key]
        wanted: dict[int, int] = {}
        for node in sorted(held, key=lambda n: (n != home, n)):
            wanted[node] = min(held[node], cores - sum(wanted.values()))
        free = self._free(record)
        while sum(wanted.values()) < cores:
            node = _roomiest(free, home)
            record.oversubscribed |= free[node] <= 0
            free[node] -= 1
            wanted[node] = wanted.get(node, 0) + 1
        return {node: count for node, count in wanted.items() if count}

    def _free(self, record: JobRecord) -> dict[int, int]:
        """Return the free slots of each node of a job that is not to leave; below zero where executors share slots."""
        held = self.jobs.held()
        present = [(node, address) for node, address in record.spec.members if address in self.workers]
        stays = [(node, address) for node, address in present if not self.workers.leaving(address)]
        return {node: self.workers.slots(address) - held.get(address, 0) for node, address in stays or present}

    async def move_shard(self, call: job_calls.MoveShard) -> str:
        """Move a shard to another task of its executor, unless the job has ended; return the status of the job.

        Raises
        ------
        MoveRefused
            If the executor is on its way to another worker, or refuses, or the job is restarting.
        PlanningError
            If nothing moves in jobs of this paradigm.
        UnknownOperator
            If there is no such operator or executor.
        """
        record = self.jobs.record(call.job)
        [(index, address)] = homes(record, call.operator, call.executor)
        _check_elastic(record)
        if not record.live:
            return record.status.value
        if _restarts(record):
            raise MoveRefused(
                f"job {record.name!r} is restarting: its shards move only while it is running. Try again later."
            )
        moving = record.homes.moving
        # While its state is copied, the executor goes on as always.
        if moving is not None and moving.begun and moving.executor == (call.operator, index):
            raise MoveRefused(f"the home of {moving.executor} is moving: move its shards when it has arrived")
        await self.calls.one(
            address, part_calls.MoveShard(*record.generation_id, call.operator, index, call.shard, call.task)
        )
        return record.status.value

    # by the control loop

    async def change(
        self, record: JobRecord, key: ExecutorKey, before: Mapping[int, int], after: Mapping[int, int]
    ) -> None:
        """Change the cores of an executor as planned, unless the plan is stale.

        Raises
        ------
        PlanningError
            If the job has ended or was restarted, the executor's cores were set or changed since the snapshot of the
            plan, or another worker has the place of one that was to have cores.
        """
        generation, planned = record.spec.generation, occupants(record, after)
        async with record.changing[key]:
            _require_generation(record, generation)
            if occupants(record, after) != planned:
                raise PlanningError(f"the nodes of job {record.name!r} were changed meanwhile")
            if not record.live or record.cores[key] != dict(before):
                raise PlanningError(f"the cores of {key[0]}[{key[1]}] were changed meanwhile")
            # Pinned cores keep their number, but move off a worker that is to leave.
            if key in record.pinned and not any(self.workers.leaving(record.nodes[node]) for node in before):
                raise PlanningError(f"the cores of {key[0]}[{key[1]}] were set by a user meanwhile")
            await self._enact(record, key, after)

    async def vacate(self, record: JobRecord, key: ExecutorKey, nodes: set[int]) -> None:
        """Take an executor's cores away from nodes, and give it as many free ones elsewhere as there are.

        Raises
        ------
        PlanningError
            If the job was restarted meanwhile: the nodes of its next generation have other numbers.
        """
        generation = record.spec.generation
        async with record.changing[key]:
            _require_generation(record, generation)
            held = record.cores[key]
            stays = {node: count for node, count in held.items() if node not in nodes}
            free = {node: slots for node, slots in self._free(record).items() if node not in nodes}
            home = record.homes.node(*key)
            for _ in range(sum(held.values()) - sum(stays.values())):
                if stays and max(free.values(), default=0) <= 0:
                    break
                node = _roomiest(free, home)
                free[node] -= 1
                stays[node] = stays.get(node, 0) + 1
            if stays != held:
                await self._enact(record, key, stays)

    def following(self, record: JobRecord, key: ExecutorKey, source: int, target: int) -> int:
        """Return how many cores an executor whose home moves can have at the new one instead of the old one."""
        if target not in self._free(record):
            return 0
        held = self.jobs.held()
        old, new = (
            SlotUse(self.workers.slots(address) if address in self.workers else 0, held.get(address, 0))
            for address in (record.nodes[source], record.nodes[target])
        )
        return following_cores(record.cores[key].get(source, 0), old, new)

    async def give(self, record: JobRecord, key: ExecutorKey, wanted: Mapping[int, int]) -> None:
        """Give an executor that has changed its home these cores, unless it has them; `changing` is held."""
        if wanted != record.cores[key]:
            await self._enact(record, key, wanted)

    async def _enact(self, record: JobRecord, key: ExecutorKey, by_node: Mapping[int, int]) -> None:
        """Have the home change the cores of its executor, and record them once it has.

        Raises
        ------
        PlanningError
            If the job was restarted meanwhile: its next generation has cores of its own.
        """
        operator, index = key
        generation = record.spec.generation
        planned = occupants(record, by_node)
        home = record.nodes[record.homes.node(operator, index)]
        record.core_changes += 1
        change = record.core_changes
        await self.calls.one(home, part_calls.SetCores(*record.generation_id, change, operator, index, dict(by_node)))
        if not record.runs(generation):
            raise PlanningError(f"job {record.name!r} was restarted while cores of {operator}[{index}] changed")
        # A node that has left meanwhile has taken its cores with it; one core at home is left at least.
        present = occupants(record, by_node)
        kept = {node: count for node, count in by_node.items() if count and present[node] == planned[node]}
        record.cores[key] = kept or {record.homes.node(operator, index): 1}


def homes(record: JobRecord, operator: str, executor: int | None) -> list[tuple[int, str]]:
    """Return the number and the home's address of each executor of a stateful operator, or of one of them.

    Raises
    ------
    UnknownOperator
        If there is no such operator, or no such executor of it.
    """
    if operator not in record.spec.cores:
        known, first = sorted(record.spec.cores), record.spec.component_of(operator)
        if first != operator:
            raise UnknownOperator(f"{operator!r} of job {record.name!r} runs in the tasks of {first!r}: name this")
        raise UnknownOperator(f"job {record.name!r} has no stateful operator {operator!r}: choose from {known}")
    found = [record.nodes[node] for node in record.homes.of(operator)]
    if executor is None:
        return [*enumerate(found)]
    if not 0 <= executor < len(found):
        raise UnknownOperator(f"operator {operator!r} has the executors 0 to {len(found) - 1}, not {executor}")
    return [(executor, found[executor])]


def _check_elastic(record: JobRecord) -> None:
    if not record.elastic:
        raise PlanningError(
            f"job {record.name!r} has the paradigm {record.spec.options.paradigm!r}: neither its cores nor its shards "
            "move between cores. "
            'Submit it with paradigm="executor-centric".'
        )


def _require_generation(record: JobRecord, generation: int) -> None:
    """Raise if a job was restarted while a change of its cores waited: its nodes have other numbers by now."""
    if not record.runs(generation):
        raise PlanningError(f"job {record.name!r} was restarted meanwhile")


def _restarts(record: JobRecord) -> bool:
    return record.status is Status.RESTARTING


def _count(cores: Any, least: int) -> int:
    if not isinstance(cores, int) or isinstance(cores, bool):
        raise PlanningError(f'cores={cores!r}: give a number, a number for each worker\'s address, or "{AUTO}"')
    if cores < least:
        raise PlanningError(f"cores={cores}: an executor keeps at least one core")
    return cores


def _roomiest(free: Mapping[int, int], home: int) -> int:
    """Return the home while it has a free slot, else the node with the most free slots.

    Raises
    ------
    NodeLost
        If there is no node.
    """
    if not free:
        raise NodeLost("every worker of the job has left the cluster, or is to leave: there are no cores")
    return home if free.get(home, 0) > 0 else max(free, key=lambda node: (free[node], node == home, -node))
