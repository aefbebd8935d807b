"""Workers that join running jobs, and workers that leave them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.background_tasks import BackgroundTasks
from dask_elastic.runtime.protocol.calls import A, Call, Version
from dask_elastic.runtime.protocol.job_spec import JobGeneration, JobSpec
from dask_elastic.runtime.protocol.remote_errors import Relayed, text_of
from dask_elastic.runtime.scheduler.cluster.occupant import Occupant, occupants
from dask_elastic.runtime.scheduler.core_changes import CoreChanges
from dask_elastic.runtime.scheduler.job_record import ExecutorKey, JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab.errors import ElasticError, NodeLost, PlanningError

logger = logging.getLogger("dask_elastic.scheduler")

T = TypeVar("T")
E = TypeVar("E", bound="ElasticError | Relayed")

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0
"""Seconds until a worker that could not join is called again; they double with each failure."""

PING_SECONDS = 1.0
"""Seconds for which workers that join together wait for each other's first answers; slower ones join by themselves."""

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
        # Workers that have not answered yet, and what waits for them.
        self._asked: set[tuple[JobRecord, str]] = set()
        self._tasks = BackgroundTasks(logger)
        self._introducing: dict[JobRecord, asyncio.Task[None]] = {}

    # joining

    def known_to_all(self, addresses: Iterable[str]) -> set[str]:
        """Return the workers, of those given, that every job whose cores may change has as nodes."""
        return set(addresses).intersection(*(record.spec.places.keys() for record in self._growing()))

    def _growing(self) -> list[JobRecord]:
        return [r for r in self.jobs.running if r.elastic and not r.starting and not r.finishing]

    async def join_new(self) -> None:
        """Make new workers nodes of every running job; those that are slow to answer become nodes when they answer."""
        for record in self._growing():
            new = [a for a in self.workers.usable() if a not in record.spec.places and self.may_try(a)]
            asked = [address for address in new if (record, address) not in self._asked]
            if asked:
                await self._join_answering(record, asked)

    async def _join_answering(self, record: JobRecord, addresses: list[str]) -> None:
        """Have workers join that answer at once; a worker that hangs does not block joins and leaves of others."""
        asked = {address: self._beside(record, address, self._ask(record, address)) for address in addresses}
        await asyncio.wait(asked.values(), timeout=PING_SECONDS)
        for address, asking in asked.items():
            if not asking.done():
                self._asked.add((record, address))
                self._beside(record, address, self._join_late(record, address, asking))
        ready = [address for address, asking in asked.items() if asking.done() and asking.result() is None]
        if ready:
            await self._join(record, ready)

    async def _join_late(
        self, record: JobRecord, address: str, asking: asyncio.Task[ElasticError | Relayed | None]
    ) -> None:
        try:
            # It may have been paused, or asked to leave, meanwhile.
            if await asking is None and record in self._growing() and address in self.workers.usable():
                await self._join(record, [address])
        finally:
            self._asked.discard((record, address))

    async def _ask(self, record: JobRecord, address: str) -> ElasticError | Relayed | None:
        """Return None when a worker answers, or an error; it counts as hung then, and is called later again."""
        try:
            await asyncio.wait_for(self.calls.one(address, Version()), self.calls.timeout)
        except TimeoutError:
            return self._put_off(record, [address], NodeLost(f"no answer within {self.calls.timeout:g} s"))
        except (ElasticError, Relayed) as error:
            return self._put_off(record, [address], error)
        return None

    def _beside(self, record: JobRecord, address: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.keep(task, f"job {record.name!r}: the joining of {address}")
        return task

    def stop(self) -> None:
        """Wait no longer for workers that are slow to answer."""
        self._tasks.cancel()

    async def join(self, record: JobRecord, address: str) -> ElasticError | Relayed | None:
        """Make a worker a node of a job, unless it is one, when it answers; returns why it could not join."""
        if record in self._growing():
            if (error := await self._ask(record, address)) is not None:
                return error
            # It may have ended while the worker was slow to answer.
            if record in self._growing():
                return await self._join(record, [address])
        return PlanningError(f"job {record.name!r} takes no workers at present")

    def may_try(self, address: str) -> bool:
        """Return whether a worker may join now: not for a while after it could not."""
        return address not in self._waits or time.monotonic() >= self._waits[address][1]

    async def _join(self, record: JobRecord, addresses: list[str]) -> ElasticError | Relayed | None:
        """Make workers nodes of a job; returns why they could not join."""
        while True:
            async with record.membership:
                before = spec = record.spec
                # Two joins of one worker may have been under way.
                addresses = [address for address in addresses if address not in spec.nodes]
                if not addresses:
                    return None
                for address in addresses:
                    spec = spec.with_guest(address)
                error: ElasticError | Relayed | None = None
                try:
                    introduced = await self._introduced(record, spec, addresses)
                    self._check_unchanged(record, before, addresses)
                except (ElasticError, Relayed) as raised:
                    error = self._put_off(record, addresses, raised)
                if error is None and introduced:
                    record.spec = spec
                    for address in addresses:
                        self._waits.pop(address, None)
                    logger.info("job %r: %s joined", record.name, ", ".join(addresses))
                    return None
                incarnation = record.joinings
            # Without the lock: they may hang. If they give way, the removal of that node has waited for it.
            dismissing = self._beside(
                record, ", ".join(addresses), self._dismiss(record, before.generation_id, addresses, incarnation)
            )
            if error is not None:
                # Nor does the control loop wait for it, which lets others join once these have.
                return error
            await dismissing

    async def _introduced(self, record: JobRecord, spec: JobSpec, addresses: list[str]) -> bool:
        """Introduce new nodes; returns False if a node is to be removed first, since it may hang, and they need it."""
        introducing = self._introducing[record] = asyncio.ensure_future(self._introduce(record, spec, addresses))
        if not record.expelling.isdisjoint(record.spec.nodes):
            introducing.cancel()
        try:
            await asyncio.wait([introducing])
        finally:
            del self._introducing[record]
            introducing.cancel()
        if introducing.cancelled():
            if not introducing.cancelling():
                raise NodeLost("a call to a node was cancelled")
            return False
        introducing.result()
        return True

    async def _introduce(self, record: JobRecord, spec: JobSpec, addresses: list[str]) -> None:
        """Have the new nodes prepare their parts, then announce them to the others, then have the new ones start."""
        record.joinings += 1
        places = [spec.nodes.index(address) for address in addresses]
        prepare = part_calls.Prepare.for_nodes(replace(spec, incarnation=record.joinings), record.components)
        await _all(
            partial(self._soon, address, prepare(place)) for address, place in zip(addresses, places, strict=True)
        )
        _require_generation(record, spec)
        record.incarnations.update(dict.fromkeys(places, record.joinings))
        await self._announce(record, spec)
        start = part_calls.StartSources(*spec.generation_id)
        await _all(partial(self._soon, address, start) for address in addresses)

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
        await _all(partial(self._soon, address, members) for address in record.addresses)

    async def _soon(self, address: str, call: Call[A]) -> A:
        """Call a worker, with a timeout: one that hangs would block joins and leaves of others.

        Raises
        ------
        NodeLost
            If it takes too long.
        """
        try:
            return await asyncio.wait_for(self.calls.one(address, call), ANSWER_SECONDS)
        except TimeoutError as error:
            raise NodeLost(f"worker {address} did not answer within {ANSWER_SECONDS:g} s") from error

    def _check_unchanged(self, record: JobRecord, before: JobSpec, addresses: list[str]) -> None:
        """Raise if the workers have left or the job has changed while the workers joined."""
        left = [address for address in addresses if address not in self.workers]
        if left:
            raise NodeLost(f"worker {left[0]} has left again")
        if not record.live or record.spec is not before:
            raise PlanningError(f"job {record.name!r} has changed meanwhile")

    def _put_off(self, record: JobRecord, addresses: list[str], error: E) -> E:
        cause = text_of(error)
        logger.warning("job %r: %s could not join: %s", record.name, ", ".join(addresses), cause)
        # What comes to the address of a worker that has left is another worker.
        for address in filter(self.workers.__contains__, addresses):
            wait, _ = self._waits.get(address, (FIRST_WAIT / 2, 0.0))
            wait = min(2 * wait, LONGEST_WAIT)
            self._waits[address] = wait, time.monotonic() + wait
        return error

    async def _dismiss(
        self, record: JobRecord, generation_id: JobGeneration, addresses: list[str], incarnation: int
    ) -> None:
        """Have workers forget their part of a job; a worker that has joined again meanwhile ignores the call."""
        forget = part_calls.Forget(*generation_id, incarnation)
        calls = (self._soon(address, forget) for address in addresses)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                logger.debug("job %r: forget: %s", record.name, result)

    # leaving

    def lost(self, address: str) -> list[JobRecord]:
        """Remove a worker that has left the cluster; returns the running jobs of which it is a node."""
        self.workers.retiring.discard(address)
        self._waits.pop(address, None)
        return [record for record in self.jobs.running if address in record.spec.places]

    async def expel(self, record: JobRecord, address: str) -> None:
        """Remove a node from a job, because it is lost or another node has lost the connection to it.

        The executors get as many cores elsewhere as are free. Later messages of the node are stale. If the worker is
        still registered it joins again later.
        """
        if address in record.expelling:
            return
        record.expelling.add(address)
        if address in record.spec.nodes and record in self._introducing:
            self._introducing[record].cancel()
        try:
            async with record.membership:
                left = await self._expel(record, address)
        finally:
            record.expelling.discard(address)
        # Without the lock: it probably hangs.
        if left is not None and address in self.workers:
            await self._dismiss(record, *left)

    async def _expel(self, record: JobRecord, address: str) -> tuple[JobGeneration, list[str], int] | None:
        """Remove a node from a job; returns which part its worker is to forget, if it has left."""
        if not record.live or record.halted or address not in record.spec.nodes or record.needs(address):
            return None
        before = record.spec
        node = before.nodes.index(address)
        logger.warning("job %r goes on without %s", record.name, address)
        for key in [key for key, by_node in record.cores.items() if node in by_node]:
            await self._replace_cores(record, key, node)
            if not record.runs(before.generation):
                # The next generation has its own nodes, and its own cores.
                return None
        incarnation = record.incarnations.get(node, 0)
        if address in record.spec.places:
            # Otherwise a home has lost touch with it meanwhile, and no other node was told.
            record.leave(address)
        await self._announce_to_most(record, record.spec, f"{address} has left")
        if address in self.workers:
            self._waits[address] = FIRST_WAIT, time.monotonic() + FIRST_WAIT
        return before.generation_id, [address], incarnation

    async def _announce_to_most(self, record: JobRecord, spec: JobSpec, what: str) -> None:
        """Announce the nodes; one that does not answer is lost itself, and gets them with its part if it joins again.

        Raises
        ------
        PlanningError
            If the job was restarted.
        """
        _require_generation(record, spec)
        try:
            await self._announce(record, spec)
        except (ElasticError, Relayed) as error:
            logger.warning("job %r: not every node knows that %s: %s", record.name, what, text_of(error))

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

    def lost_touch(self, record: JobRecord, planned: Mapping[int, Occupant]) -> None:
        """Remove the nodes that a home cannot reach and that hold nothing; they join again later.

        It does not wait for joins and leaves, which check whether the nodes are still there. While the home tried,
        other workers may have got the places of these nodes.

        Parameters
        ----------
        record : JobRecord
            The job.
        planned : dict of int to Occupant
            The nodes, as they were when the home was asked.
        """
        # Those of an earlier generation may have had places that this one does not have.
        guests = [node for node in planned if node in record.spec.guests and not record.holds(node)]
        for node, occupant in occupants(record, guests).items():
            if occupant == planned[node]:
                record.leave(record.nodes[node])

    async def make_guests(self, record: JobRecord, workers: Iterable[str]) -> None:
        """Announce to every node of a job that the job survives the loss of workers."""
        async with record.membership:
            before = record.spec
            places = places_of(record, workers)
            new = places - set(before.guests)
            for node in places if record.live else ():
                address = before.nodes[node]
                if address in record.spec.places:
                    # Its counts stay when it has left; a home may have lost touch with it meanwhile.
                    report = await self._soon(address, part_calls.Report(*before.generation_id))
                    _require_generation(record, before)
                    if address in record.spec.places:
                        record.receive(node, report)
            if new and record.live:
                spec = replace(record.spec, guests=(*record.spec.guests, *sorted(new)))
                leaving = ", ".join(record.nodes[node] for node in sorted(new))
                await self._announce_to_most(record, spec, f"{leaving} may leave")
                _require_generation(record, spec)
                record.spec = replace(record.spec, guests=(*record.spec.guests, *sorted(new)))


def _require_generation(record: JobRecord, spec: JobSpec) -> None:
    """Raise if the job was restarted since `spec` was made from its nodes."""
    if not record.runs(spec.generation):
        raise PlanningError(f"job {record.name!r} was restarted meanwhile")


def places_of(record: JobRecord, workers: Iterable[str]) -> set[int]:
    """Return the nodes of a job that are on workers."""
    return {record.spec.places[address] for address in workers if address in record.spec.places}


async def _all(calls: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Make all calls, a few at a time, then raise the first error."""
    slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def in_turn(call: Callable[[], Awaitable[Any]]) -> None:
        async with slots:
            # Only now: a call that has begun must be awaited, also if all are given up.
            await call()

    for result in await asyncio.gather(*map(in_turn, calls), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
