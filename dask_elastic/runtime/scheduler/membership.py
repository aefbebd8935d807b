"""Workers that join running jobs, and workers that leave them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any

from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import HandledCall, Version
from dask_elastic.runtime.protocol.job_spec import JobGeneration, JobSpec
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
"""Seconds until a worker that could not join is called again; they double with each failure."""

DRAIN_WAIT = 2.0
"""Seconds after which a home answers at the latest whether its tasks on some nodes have ended."""

PING_SECONDS = 1.0
"""Timeout of the call that a worker answers before it is called to join."""

ANSWER_SECONDS = 10.0
"""Timeout of a call to a worker that joins or leaves."""

CALLS_AT_ONCE = 8
"""Starting all calls of a large cluster at once would block the scheduler's event loop."""


class Membership:
    """Lets workers join and leave running jobs.

    Parameters
    ----------
    workers : Workers
        The workers.
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the workers.
    cores : CoreChanges
        Moves cores off workers that are to leave.
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
        return [r for r in self.jobs.running if r.elastic and not r.starting and not r.finishing]

    async def join_new(self) -> None:
        """Make new workers nodes of every running job."""
        for record in self._growing():
            new = [a for a in self.workers.usable() if a not in record.spec.nodes and self._may_try(a)]
            if new and (answering := await self._answering(record, new)):
                await self._join(record, answering)

    async def _answering(self, record: JobRecord, addresses: list[str]) -> list[str]:
        """Return those workers that answer at once; a worker that hangs would block joins and leaves of others."""
        calls = (asyncio.wait_for(self.calls.one(a, Version()), PING_SECONDS) for a in addresses)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, TimeoutError):
                self._put_off(record, [address], NodeLost(f"no answer within {PING_SECONDS:g} s"))
            elif isinstance(answer, ElasticError | Relayed):
                self._put_off(record, [address], answer)
            elif isinstance(answer, BaseException):
                raise answer
        return [address for address, answer in zip(addresses, answers, strict=True) if isinstance(answer, str)]

    async def join(self, record: JobRecord, address: str) -> None:
        """Make a worker a node of a job, unless it is one or does not answer."""
        if record in self._growing() and (answering := await self._answering(record, [address])):
            await self._join(record, answering)

    def _may_try(self, address: str) -> bool:
        return address not in self._waits or time.monotonic() >= self._waits[address][1]

    async def _join(self, record: JobRecord, addresses: list[str]) -> None:
        async with record.membership:
            before = spec = record.spec
            # Two joins of one worker may have been under way.
            addresses = [address for address in addresses if address not in spec.nodes]
            if not addresses:
                return
            for address in addresses:
                spec = spec.with_guest(address)
            try:
                await self._introduce(record, spec, addresses)
                self._check_unchanged(record, before, addresses)
            except (ElasticError, Relayed) as error:
                self._put_off(record, addresses, error)
                await self._dismiss(record, before.generation_id, addresses, record.joinings)
                return
            record.spec = spec
            for address in addresses:
                self._waits.pop(address, None)
            logger.info("job %r: %s joined", record.name, ", ".join(addresses))

    async def _introduce(self, record: JobRecord, spec: JobSpec, addresses: list[str]) -> None:
        """Have the new nodes prepare their parts, then announce them to the others, then have the new ones start."""
        record.joinings += 1
        places = [spec.nodes.index(address) for address in addresses]
        parts = [replace(spec, node=node, incarnation=record.joinings) for node in places]
        await _all(
            self._soon(self.calls.one(address, part_calls.Prepare(part, record.components)), address)
            for address, part in zip(addresses, parts, strict=True)
        )
        _require_generation(record, spec)
        record.incarnations.update(dict.fromkeys(places, record.joinings))
        await self._announce(record, spec)
        start = part_calls.StartSources(*spec.generation_id)
        await _all(self.calls.one(address, start) for address in addresses)

    async def _announce(self, record: JobRecord, spec: JobSpec) -> None:
        """Announce the nodes of one generation of a job to all of them.

        Raises
        ------
        PlanningError
            If the job was restarted: the nodes of its next generation have other places.
        """
        _require_generation(record, spec)
        record.changes += 1
        members = part_calls.Members(*spec.generation_id, record.changes, spec.nodes, spec.guests)
        await _all(self._soon(self.calls.one(address, members), address) for address in record.addresses)

    @staticmethod
    async def _soon(call: Awaitable[Any], address: str) -> None:
        """Wait for a call, with a timeout: a worker that hangs would block joins and leaves of others.

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
        """Raise if the workers have left or the job has changed while the workers joined."""
        left = [address for address in addresses if address not in self.workers]
        if left:
            raise NodeLost(f"worker {left[0]} has left again")
        if not record.live or record.spec is not before:
            raise PlanningError(f"job {record.name!r} has changed meanwhile")

    def _put_off(self, record: JobRecord, addresses: list[str], error: ElasticError | Relayed) -> None:
        cause = load_error(error.data) if isinstance(error, Relayed) else error
        logger.warning("job %r: %s could not join: %s", record.name, ", ".join(addresses), cause)
        for address in addresses:
            wait, _ = self._waits.get(address, (FIRST_WAIT / 2, 0.0))
            wait = min(2 * wait, LONGEST_WAIT)
            self._waits[address] = wait, time.monotonic() + wait

    async def _dismiss(
        self, record: JobRecord, generation_id: JobGeneration, addresses: list[str], incarnation: int
    ) -> None:
        """Have workers forget their part of a job; a worker that has joined again meanwhile ignores the call."""
        forget = part_calls.Forget(*generation_id, incarnation)
        calls = (self._soon(self.calls.one(address, forget), address) for address in addresses)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                logger.debug("job %r: forget: %s", record.name, result)

    # leaving

    def lost(self, address: str) -> list[JobRecord]:
        """Remove a worker that has left the cluster; returns the running jobs of which it is a node."""
        self.workers.retiring.discard(address)
        self._waits.pop(address, None)
        return [record for record in self.jobs.running if address in record.spec.nodes]

    async def expel(self, record: JobRecord, address: str) -> None:
        """Remove a node from a job, because it is lost or another node has lost the connection to it.

        The executors get as many cores elsewhere as are free. Later messages of the node are stale. If the worker is
        still registered it joins again later.
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
        if not record.live or record.halted or address not in record.spec.nodes or record.needs(address):
            return
        before = record.spec
        node = before.nodes.index(address)
        logger.warning("job %r goes on without %s", record.name, address)
        for key in [key for key, by_node in record.cores.items() if node in by_node]:
            await self._replace_cores(record, key, node)
            if not record.runs(before.generation):
                # The next generation has its own nodes, and its own cores.
                return
        incarnation = record.incarnations.get(node, 0)
        record.leave(address)
        try:
            await self._announce(record, record.spec)
        except (ElasticError, Relayed) as error:
            # A node that does not answer is lost itself; if it joins again it gets the new nodes with its part.
            logger.warning("job %r: not every node knows that %s has left: %s", record.name, address, error)
        if address in self.workers:
            self._waits[address] = FIRST_WAIT, time.monotonic() + FIRST_WAIT
            await self._dismiss(record, before.generation_id, [address], incarnation)

    async def _replace_cores(self, record: JobRecord, key: ExecutorKey, node: int) -> None:
        generation = record.spec.generation
        try:
            await self.cores.vacate(record, key, {node})
        except (ElasticError, Relayed) as error:
            if not record.runs(generation):
                return
            # The executor goes on with its other cores, one core at home at least.
            logger.warning("job %r: %s[%d] keeps its other cores: %s", record.name, *key, error)
            left = {other: count for other, count in record.cores[key].items() if other != node}
            record.cores[key] = left or {record.homes.node(*key): 1}

    def lost_touch(self, record: JobRecord, nodes: Iterable[int]) -> None:
        """Remove the nodes that a home cannot reach and that hold nothing; they join again later."""
        for node in nodes:
            if node in record.spec.guests and not record.holds(node):
                record.leave(record.nodes[node])

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [job_calls.Retire.handled_by(self.retire)]

    async def retire(self, call: job_calls.Retire) -> None:
        """Take all cores away from workers; returns when no task is left there, so that they can be closed.

        Raises
        ------
        PlanningError
            If a worker is not registered, or executors, sources or sinks of a running job are at home there; nothing is
            changed then.
        TimeoutError
            If executors still have tasks there after the timeout. The workers get no new ones.
        """
        workers = call.workers
        for address in workers:
            self._check_can_leave(address)
        self.workers.retiring.update(workers)
        deadline = math.inf if call.timeout is None else time.monotonic() + call.timeout
        for record in self.jobs.running:
            await record.started()
            nodes = _places(record, workers) if record.live else set()
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

    async def _drained(self, record: JobRecord, workers: Iterable[str], deadline: float) -> None:
        """Return when no task of a job is left on workers, or the job has ended."""
        ended = asyncio.ensure_future(record.ended())
        try:
            while record.live and (left := await self._tasks_left(record, workers, deadline, ended)):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{', '.join(sorted(map(str, left)))} of job {record.name!r} still run on workers that are to "
                        "leave. These get no more cores: call retire again to go on waiting."
                    )
        finally:
            ended.cancel()

    async def _tasks_left(
        self, record: JobRecord, workers: Iterable[str], deadline: float, ended: asyncio.Future[None]
    ) -> set[ExecutorId]:
        """Return the executors that still have tasks on workers, once there are none or after `DRAIN_WAIT` seconds.

        The homes answer as soon as the last of these tasks has ended.
        """
        nodes = tuple(sorted(_places(record, workers)))
        if not nodes:
            return set()
        wait = max(0.0, min(DRAIN_WAIT, deadline - time.monotonic()))
        call = part_calls.AwaitTaskEnds(*record.generation_id, nodes, wait)
        asking = asyncio.ensure_future(self.calls.all(record, call))
        try:
            either: set[asyncio.Future[Any]] = {asking, ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return {executor for part in asking.result() for executor in part} if asking.done() else set()
        finally:
            asking.cancel()

    async def _make_guests(self, record: JobRecord, workers: Iterable[str]) -> None:
        """Announce to every node of a job that the job survives the loss of workers."""
        async with record.membership:
            new = _places(record, workers) - set(record.spec.guests)
            for node in new if record.live else ():
                # Its counts stay when it has left.
                report = await self.calls.one(record.nodes[node], part_calls.Report(*record.generation_id))
                record.receive(node, report)
            if new and record.live:
                spec = replace(record.spec, guests=(*record.spec.guests, *sorted(new)))
                await self._announce(record, spec)
                record.spec = replace(record.spec, guests=(*record.spec.guests, *sorted(new)))


def _require_generation(record: JobRecord, spec: JobSpec) -> None:
    """Raise if the job was restarted since `spec` was made from its nodes."""
    if not record.runs(spec.generation):
        raise PlanningError(f"job {record.name!r} was restarted meanwhile")


def _places(record: JobRecord, workers: Iterable[str]) -> set[int]:
    """Return the nodes of a job that are on workers."""
    return {record.nodes.index(address) for address in workers if address in record.nodes}


async def _all(calls: Iterable[Awaitable[Any]]) -> None:
    """Wait for all calls, a few at a time, then raise the first error."""
    slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def in_turn(call: Awaitable[Any]) -> None:
        async with slots:
            await call

    for result in await asyncio.gather(*map(in_turn, calls), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _settled_at(record: JobRecord, address: str) -> list[ExecutorId]:
    """Return the executors, and the instances of sources and sinks, of a job that are at home on a worker."""
    if address not in record.nodes:
        return []
    spec, node = record.spec, record.nodes.index(address)
    found = [one for name in spec.homes for one in spec.instances(name) if spec.node_of(one) == node]
    sinks = [s.name for s in spec.summaries if s.kind == "sink" and spec.sink_inputs(s.name, node)]
    return [*found, *(ExecutorId(name, node) for name in sinks)]
