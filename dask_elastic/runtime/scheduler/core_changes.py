"""Cores and shards of running jobs: by hand, by the control loop, and away from workers that are to leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_elastic.runtime.protocol.job_spec import STATIC
from dask_elastic.runtime.scheduler.job_record import ExecutorKey, JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab.errors import PlanningError, UnknownOperator

AUTO = "auto"
"""Given as a number of cores: the control loop is to choose it."""


class CoreChanges:
    """Changes what executors have.

    Parameters
    ----------
    workers : Workers
        Their slots.
    jobs : JobTable
        Who has cores.
    calls : WorkerCalls
        The way to the homes.
    """

    def __init__(self, workers: Workers, jobs: JobTable, calls: WorkerCalls):
        self.workers = workers
        self.jobs = jobs
        self.calls = calls

    # by hand

    async def set_cores(self, job: str, operator: str, cores: Any, executor: int | None = None) -> None:
        """Give each executor so many cores (a number), or so many on each node ({address: number}), for good.

        ``"auto"`` gives them back to the control loop.
        """
        record = self.jobs.record(job)
        _check_elastic(record)
        for index, _ in homes(record, operator, executor):
            key = operator, index
            async with record.changing[key]:
                if cores == AUTO:
                    record.pinned.discard(key)
                    continue
                await self._tell(record, key, self._wanted(record, key, cores))
                record.pinned.add(key)

    def _wanted(self, record: JobRecord, key: ExecutorKey, cores: Any) -> dict[int, int]:
        if isinstance(cores, dict):
            unknown = [address for address in cores if address not in record.addresses]
            if unknown:
                raise PlanningError(f"{unknown[0]!r} is no node of job {record.name!r}: choose from {record.addresses}")
            leaving = [address for address, count in cores.items() if count and self.workers.leaving(address)]
            if leaving:
                raise PlanningError(f"worker {leaving[0]} is about to leave: it takes no more cores")
            return {record.nodes.index(address): _count(count, 0) for address, count in cores.items()}
        return self._of_number(record, key, _count(cores, 1))

    def _of_number(self, record: JobRecord, key: ExecutorKey, cores: int) -> dict[int, int]:
        """Keep what it has as far as wanted, home first; then take free slots at home, then those of other nodes."""
        operator, index = key
        home = record.spec.homes[operator][index]
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
        """Free slots of each node of a job that stays; below zero where executors share them."""
        held = self.jobs.held()
        present = [(node, address) for node, address in record.spec.members if address in self.workers]
        stays = [(node, address) for node, address in present if not self.workers.leaving(address)]
        return {node: self.workers.slots(address) - held.get(address, 0) for node, address in stays or present}

    async def move_shard(self, job: str, operator: str, executor: int, shard: int, task: int) -> None:
        """Move a shard to a task of its executor."""
        record = self.jobs.record(job)
        [(index, address)] = homes(record, operator, executor)
        _check_elastic(record)
        run = {"job": job, "generation": record.spec.generation}
        await self.calls.one(address, "move_shard", **run, operator=operator, executor=index, shard=shard, task=task)

    # by decision

    async def change(
        self, record: JobRecord, key: ExecutorKey, before: Mapping[int, int], after: Mapping[int, int]
    ) -> None:
        """Carry out what was decided, unless the decision is out of date.

        Raises
        ------
        PlanningError
            If the job has ended, or somebody else chose or changed the executor's cores meanwhile.
        """
        async with record.changing[key]:
            if not record.live or record.cores[key] != dict(before):
                raise PlanningError(f"the cores of {key[0]}[{key[1]}] were changed meanwhile")
            # Cores that somebody chose stay as many, but not on a worker that leaves.
            if key in record.pinned and not any(self.workers.leaving(record.nodes[node]) for node in before):
                raise PlanningError(f"the cores of {key[0]}[{key[1]}] were set by hand meanwhile")
            await self._tell(record, key, after)

    async def vacate(self, record: JobRecord, key: ExecutorKey, nodes: set[int]) -> None:
        """Take an executor's cores away from nodes, and give it as many free ones elsewhere as there are."""
        async with record.changing[key]:
            held = record.cores[key]
            stays = {node: count for node, count in held.items() if node not in nodes}
            free = {node: slots for node, slots in self._free(record).items() if node not in nodes}
            home = record.spec.homes[key[0]][key[1]]
            for _ in range(sum(held.values()) - sum(stays.values())):
                node = _roomiest(free, home)
                if free[node] <= 0 and stays:
                    break
                free[node] -= 1
                stays[node] = stays.get(node, 0) + 1
            if stays != held:
                await self._tell(record, key, stays)

    async def _tell(self, record: JobRecord, key: ExecutorKey, by_node: Mapping[int, int]) -> None:
        operator, index = key
        home = record.nodes[record.spec.homes[operator][index]]
        cores = [[node, count] for node, count in by_node.items()]
        record.core_changes += 1
        run = {"job": record.name, "generation": record.spec.generation, "change": record.core_changes}
        await self.calls.one(home, "set_cores", **run, operator=operator, executor=index, cores=cores)
        record.cores[key] = {node: count for node, count in by_node.items() if count}


def homes(record: JobRecord, operator: str, executor: int | None) -> list[tuple[int, str]]:
    """(executor, address of its home) of a stateful operator, or of one executor of it.

    Raises
    ------
    UnknownOperator
        If there is no such operator, or no such executor of it.
    """
    if operator not in record.spec.cores:
        known = sorted(record.spec.cores)
        raise UnknownOperator(f"job {record.name!r} has no stateful operator {operator!r}: choose from {known}")
    found = [record.nodes[node] for node in record.spec.homes[operator]]
    if executor is None:
        return [*enumerate(found)]
    if not 0 <= executor < len(found):
        raise UnknownOperator(f"operator {operator!r} has the executors 0 to {len(found) - 1}, not {executor}")
    return [(executor, found[executor])]


def _check_elastic(record: JobRecord) -> None:
    if not record.elastic:
        raise PlanningError(
            f"job {record.name!r} has the paradigm {STATIC!r}: neither its cores nor its shards move. "
            'Submit it with paradigm="executor-centric".'
        )


def _count(cores: Any, least: int) -> int:
    if not isinstance(cores, int) or isinstance(cores, bool):
        raise PlanningError(f'cores={cores!r}: give a number, a number for each worker\'s address, or "{AUTO}"')
    if cores < least:
        raise PlanningError(f"an executor keeps at least one core: cores={cores} was asked for")
    return cores


def _roomiest(free: Mapping[int, int], home: int) -> int:
    """Return the home while it has a free slot, else the node with the most."""
    return home if free.get(home, 0) > 0 else max(free, key=lambda node: (free[node], node == home, -node))
