"""Workers that join running jobs, and workers that leave them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any

from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, load_error
from dask_elastic.runtime.scheduler.core_changes import CoreChanges
from dask_elastic.runtime.scheduler.job_record import ExecutorKey, JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab.errors import ElasticError, NodeLost, PlanningError
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.scheduler")

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0
"""Seconds until a worker that could not join is asked again; they double from time to time."""

DRAIN_POLL = 0.05

PING_SECONDS = 1.0
"""A worker that does not say its version so soon is not asked to join."""

ANSWER_SECONDS = 10.0
"""A worker that takes longer to come or go is left out."""

CALLS_AT_ONCE = 8
"""Beginning all calls of a large cluster at once would keep the scheduler's event loop busy for too long."""


class Membership:
    """Which workers are nodes of which jobs.

    Parameters
    ----------
    workers : Workers
        The workers.
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        The way to the nodes.
    cores : CoreChanges
        Takes cores away from workers that are to leave.
    """

    def __init__(self, workers: Workers, jobs: JobTable, calls: WorkerCalls, cores: CoreChanges):
        self.workers = workers
        self.jobs = jobs
        self.calls = calls
        self.cores = cores
        self._waits: dict[str, tuple[float, float]] = {}

    # joining

    def known_to_all(self, address: str) -> bool:
        """Return whether every job whose cores may change has the worker as a node."""
        return all(address in record.spec.nodes for record in self._growing())

    def _growing(self) -> list[JobRecord]:
        return [r for r in self.jobs.running if r.elastic and r.status is not Status.STARTING and not r.finishing]

    async def join_new(self) -> None:
        """Make the workers that came up nodes of every running job."""
        for record in self._growing():
            new = [a for a in self.workers.usable() if a not in record.spec.nodes and self._may_try(a)]
            if new and (answering := await self._answering(record, new)):
                await self._join(record, answering)

    async def _answering(self, record: JobRecord, addresses: list[str]) -> list[str]:
        """Return which of some workers answer at once: one that hangs would keep others from coming and going."""
        calls = (asyncio.wait_for(self.calls.one(a, "version"), PING_SECONDS) for a in addresses)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, TimeoutError):
                self._put_off(record, [address], NodeLost(f"no answer within {PING_SECONDS:g} s"))
            elif isinstance(answer, ElasticError | Relayed):
                self._put_off(record, [address], answer)
            elif isinstance(answer, BaseException):
                raise answer
        return [address for address, answer in zip(addresses, answers, strict=True) if isinstance(answer, str)]

    def _may_try(self, address: str) -> bool:
        return address not in self._waits or time.monotonic() >= self._waits[address][1]

    async def _join(self, record: JobRecord, addresses: list[str]) -> None:
        async with record.membership:
            before = spec = record.spec
            for address in addresses:
                spec = spec.with_guest(address)
            try:
                await self._introduce(record, spec, addresses)
                self._check_unchanged(record, before, addresses)
            except (ElasticError, Relayed) as error:
                self._put_off(record, addresses, error)
                await self._dismiss(record, addresses, record.joinings)
                return
            record.spec = spec
            for address in addresses:
                self._waits.pop(address, None)
            logger.info("job %r: %s joined", record.name, ", ".join(addresses))

    async def _introduce(self, record: JobRecord, spec: JobSpec, addresses: list[str]) -> None:
        """Let the new nodes prepare their part, then tell the others of them, then let the new ones begin."""
        record.joinings += 1
        places = [spec.nodes.index(address) for address in addresses]
        parts = [replace(spec, node=node, incarnation=record.joinings).to_message() for node in places]
        await _all(
            self._soon(self.calls.one(address, "prepare", spec=part, components=record.components), address)
            for address, part in zip(addresses, parts, strict=True)
        )
        record.incarnations.update(dict.fromkeys(places, record.joinings))
        await self._announce(record, spec)
        run = {"job": record.name, "generation": spec.generation}
        await _all(self.calls.one(address, "start_sources", **run) for address in addresses)

    async def _announce(self, record: JobRecord, spec: JobSpec) -> None:
        record.changes += 1
        run = {"job": spec.job, "generation": spec.generation, "change": record.changes}
        members = {**run, "nodes": spec.nodes, "guests": spec.guests}
        await _all(self._soon(self.calls.one(a, "members", **members), a) for a in record.addresses)

    @staticmethod
    async def _soon(call: Awaitable[Any], address: str) -> None:
        """Wait for a call, but not for a worker that hangs: nobody else could come or go meanwhile.

        Raises
        ------
        NodeLost
            If it takes too long.
        """
        try:
            await asyncio.wait_for(call, ANSWER_SECONDS)
        except TimeoutError as error:
            raise NodeLost(f"worker {address} did not answer within {ANSWER_SECONDS:g} s") from error

    def _check_unchanged(self, record: JobRecord, before: JobSpec, addresses: list[str]) -> None:
        """Raise if what was arranged is out of date."""
        gone = [address for address in addresses if address not in self.workers]
        if gone:
            raise NodeLost(f"worker {gone[0]} has left again")
        if not record.live or record.spec is not before:
            raise PlanningError(f"job {record.name!r} has changed meanwhile")

    def _put_off(self, record: JobRecord, addresses: list[str], error: ElasticError | Relayed) -> None:
        cause = load_error(error.data) if isinstance(error, Relayed) else error
        logger.warning("job %r: %s could not join: %s", record.name, ", ".join(addresses), cause)
        for address in addresses:
            wait, _ = self._waits.get(address, (FIRST_WAIT / 2, 0.0))
            wait = min(2 * wait, LONGEST_WAIT)
            self._waits[address] = wait, time.monotonic() + wait

    async def _dismiss(self, record: JobRecord, addresses: list[str], incarnation: int) -> None:
        """Have workers forget a job; it may reach them when they have joined it anew, and does not count then."""
        run = {"job": record.name, "generation": record.spec.generation, "incarnation": incarnation}
        calls = (self._soon(self.calls.one(address, "forget", **run), address) for address in addresses)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                logger.debug("job %r: forget: %s", record.name, result)

    # leaving

    def lost(self, address: str) -> list[JobRecord]:
        """Note that a worker is gone; returns the jobs that had it as a node."""
        self.workers.retiring.discard(address)
        self._waits.pop(address, None)
        return [record for record in self.jobs.running if address in record.spec.nodes]

    async def expel(self, record: JobRecord, address: str) -> None:
        """Let a job go on without a node that is lost, or that another node has lost touch with.

        Its executors get as many cores elsewhere as are free. What the node says from here on is stale. If it is still
        there it may join anew.
        """
        if address in record.expelling:
            return
        record.expelling.add(address)
        try:
            async with record.membership:
                await self._expel(record, address)
        finally:
            record.expelling.discard(address)

    async def _expel(self, record: JobRecord, address: str) -> None:
        if not record.live or address not in record.spec.nodes or record.needs(address):
            return
        node = record.spec.nodes.index(address)
        logger.warning("job %r goes on without %s", record.name, address)
        for key in [key for key, by_node in record.cores.items() if node in by_node]:
            await self._replace_cores(record, key, node)
        record.leave(address)
        try:
            await self._announce(record, record.spec)
        except (ElasticError, Relayed) as error:
            # Whoever cannot be told is lost itself, and hears of it when it joins anew, if it does.
            logger.warning("job %r: not every node was told that %s is out: %s", record.name, address, error)
        if address in self.workers:
            self._waits[address] = FIRST_WAIT, time.monotonic() + FIRST_WAIT
            await self._dismiss(record, [address], record.incarnations.get(node, 0))

    async def _replace_cores(self, record: JobRecord, key: ExecutorKey, node: int) -> None:
        try:
            await self.cores.vacate(record, key, {node})
        except (ElasticError, Relayed) as error:
            # The executor itself goes on with what it has, one core at home at least.
            logger.warning("job %r: %s[%d] keeps its other cores: %s", record.name, *key, error)
            left = {other: count for other, count in record.cores[key].items() if other != node}
            record.cores[key] = left or {record.spec.homes[key[0]][key[1]]: 1}

    def lost_touch(self, record: JobRecord, nodes: Iterable[int]) -> None:
        """Note that a home has no way to nodes any more; those that hold nothing leave, and may join anew."""
        for node in nodes:
            if node in record.spec.guests and not record.holds(node):
                record.leave(record.nodes[node])

    async def retire(self, workers: list[str], timeout: float | None) -> None:
        """Take all cores away from workers and return once they can be closed without harm to a job.

        Raises
        ------
        PlanningError
            If a worker is not there, or a running job cannot do without it; nothing is changed then.
        TimeoutError
            If executors still have tasks there after `timeout` seconds. The workers get no new ones.
        """
        for address in workers:
            self._check_can_leave(address)
        self.workers.retiring.update(workers)
        deadline = None if timeout is None else time.monotonic() + timeout
        for record in self.jobs.running:
            while record.status is Status.STARTING:
                await asyncio.sleep(DRAIN_POLL)
            nodes = {record.nodes.index(address) for address in workers if address in record.nodes}
            for key in [key for key, by_node in record.cores.items() if nodes & by_node.keys()]:
                await self.cores.vacate(record, key, nodes)
        for record in self.jobs.running:
            await self._drained(record, workers, deadline)
            await self._make_guests(record, workers)

    def _check_can_leave(self, address: str) -> None:
        if address not in self.workers:
            known = ", ".join(sorted(self.workers.scheduler.workers)) or "none"
            raise PlanningError(f"there is no worker {address!r}: the workers are {known}")
        held = [
            f"{', '.join(map(str, settled))} of job {record.name!r}"
            for record in self.jobs.running
            if (settled := _settled_at(record, address))
        ]
        if held:
            raise PlanningError(
                f"worker {address} cannot be drained: it is the home of {'; and of '.join(held)}. Executors, sources "
                "and sinks do not change their home yet: stop or drain such a job first, or retire other workers."
            )

    async def _drained(self, record: JobRecord, workers: list[str], deadline: float | None) -> None:
        """Return once no task of a job is left on workers."""
        while record.live and (left := await self._tasks_on(record, workers)):
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(
                    f"{', '.join(sorted(left))} of job {record.name!r} still run on workers that are to leave. These "
                    "get no more cores: call retire again to go on waiting."
                )
            await asyncio.sleep(DRAIN_POLL)

    async def _tasks_on(self, record: JobRecord, workers: list[str]) -> set[str]:
        nodes = {record.nodes.index(address) for address in workers if address in record.nodes}
        if not nodes:
            return set()
        parts = await self.calls.all(record, "task_nodes")
        return {f"{operator}[{index}]" for part in parts for operator, index, at in part if nodes & set(at)}

    async def _make_guests(self, record: JobRecord, workers: list[str]) -> None:
        """Let every node of a job know that it can do without workers."""
        async with record.membership:
            places = {record.nodes.index(address) for address in workers if address in record.nodes}
            new = places - set(record.spec.guests)
            for node in new if record.live else ():
                # Nobody can ask it again once it has left.
                run = {"job": record.name, "generation": record.spec.generation}
                last = await self.calls.one(record.nodes[node], "report", **run)
                record.reports[node] = {**last, "at": time.time()}
            if new and record.live:
                spec = replace(record.spec, guests=(*record.spec.guests, *sorted(new)))
                await self._announce(record, spec)
                record.spec = replace(record.spec, guests=(*record.spec.guests, *sorted(new)))


async def _all(calls: Iterable[Awaitable[Any]]) -> None:
    """Wait for all calls, a few at a time, then raise what the first that failed raised."""
    slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def in_turn(call: Awaitable[Any]) -> None:
        async with slots:
            await call

    for result in await asyncio.gather(*map(in_turn, calls), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _settled_at(record: JobRecord, address: str) -> list[ExecutorId]:
    """Return the executors, sources and sinks of a job that are at home on a worker."""
    if address not in record.nodes:
        return []
    spec, node = record.spec, record.nodes.index(address)
    found = [one for name in spec.homes for one in spec.instances(name) if spec.node_of(one) == node]
    sinks = [s.name for s in spec.summaries if s.kind == "sink" and spec.sink_inputs(s.name, node)]
    return [*found, *(ExecutorId(name, node) for name in sinks)]
