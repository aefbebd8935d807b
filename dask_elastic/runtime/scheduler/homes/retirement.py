"""Workers that are emptied so that they can be closed: sources, sinks and homes first, then cores, then tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from dask_elastic.planning.new_home import HomeCandidate, new_home
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, text_of
from dask_elastic.runtime.scheduler.homes.home_moves import HomeMoves, hindrance
from dask_elastic.runtime.scheduler.homes.planned_restarts import PlannedRestarts, fixed_at, obstacle
from dask_elastic.runtime.scheduler.job_queries import is_over
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.membership import Membership, places_of
from dask_elastic.vocab.errors import ElasticError, NodeLost, PlanningError
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.scheduler")

DRAIN_WAIT = 2.0
"""Seconds after which a home answers at the latest whether its tasks on some nodes have ended."""

ATTEMPTS = 5
RESTART_ATTEMPTS = 2
RETRY_SECONDS = 0.5
"""Moves, and restarts, in a row that may fail, and seconds between two of them."""


class Retirement:
    """Empties workers.

    Parameters
    ----------
    membership : Membership
        Announces that jobs survive the loss of the workers.
    moves : HomeMoves
        Moves homes.
    restarts : PlannedRestarts
        Restarts jobs whose sources, sinks or static executors are on the workers.
    timeout : float
        Seconds within which jobs must have left workers that Dask retires.

    Attributes
    ----------
    active : int
        Calls that empty workers at this moment.
    """

    def __init__(self, membership: Membership, moves: HomeMoves, restarts: PlannedRestarts, timeout: float = 60.0):
        self.membership = membership
        self.moves = moves
        self.restarts = restarts
        self.cores = moves.cores
        self.workers, self.jobs, self.calls = moves.workers, moves.jobs, moves.calls
        self.timeout = timeout
        self.active = 0

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [job_calls.Retire.handled_by(self.retire)]

    async def retire(self, call: job_calls.Retire) -> None:
        """Move executors and cores away from workers; returns when no task is left there, so that they can be closed.

        Raises
        ------
        PlanningError
            If a worker is not registered, or hosts what can neither move nor be restarted elsewhere; nothing is changed
            then. Also if it is to stay after all.
        TimeoutError
            If sources, sinks or executors are still there after the timeout. The workers get no new ones.
        ElasticError, Relayed
            If an executor could not be moved, or a job not be restarted, several times.
        """
        workers = call.workers
        for address in workers:
            self._check_can_leave(address, workers)
        self.workers.retiring.update(workers)
        deadline = math.inf if call.timeout is None else time.monotonic() + call.timeout
        self.active += 1
        try:
            await self._empty(workers, deadline)
        finally:
            self.active -= 1

    async def _empty(self, workers: tuple[str, ...], deadline: float) -> None:
        """Return when workers have neither homes nor cores nor tasks of any job."""
        for record in self.jobs.running:
            await _by(deadline, record.started())
            if record.status is Status.STARTING:
                raise TimeoutError(f"job {record.name!r} is still starting: call retire again when it runs.")
            await _in_one_generation(record, deadline, partial(self._leave, record, workers, deadline))
        for record in self.jobs.running:
            await _in_one_generation(record, deadline, partial(self._end_tasks, record, workers, deadline))

    async def _leave(self, record: JobRecord, workers: tuple[str, ...], deadline: float) -> None:
        """Have the sources, sinks, homes and cores of a job leave workers."""
        await self._restart_elsewhere(record, workers, deadline)
        await self._move_homes(record, workers, deadline)
        self._require_leaving(workers)
        nodes = places_of(record, workers) if record.live else set()
        for key in [key for key, by_node in record.cores.items() if nodes & by_node.keys()]:
            await self.cores.vacate(record, key, nodes)

    async def _end_tasks(self, record: JobRecord, workers: tuple[str, ...], deadline: float) -> None:
        """Return when a job has left workers, and survives their loss."""
        # The job may have restarted there: the workers may have been chosen before they were to leave.
        await self._leave(record, workers, deadline)
        await self._drained(record, workers, deadline)
        self._require_leaving(workers)
        await self.membership.make_guests(record, workers)

    async def vacate(self, addresses: Iterable[str]) -> dict[str, str]:
        """Have jobs leave workers that Dask retires.

        Parameters
        ----------
        addresses : iterable of str
            Workers. Those that are left are used no more.

        Returns
        -------
        dict of str to str
            Why some workers stay, by address: jobs cannot leave them, or have not within the time that is configured.
        """
        workers, kept = tuple(addresses), {}
        before = set(self.workers.retiring)
        for address in workers:
            try:
                self._check_can_leave(address, workers)
            except PlanningError as error:
                kept[address] = str(error)
        leaving = tuple(address for address in workers if address not in kept)
        if not leaving:
            # As when the cluster closes while a job starts, for which nothing has to wait.
            return kept
        try:
            await self.retire(job_calls.Retire(leaving, self.timeout))
        except (ElasticError, Relayed, OSError, TimeoutError) as error:
            self.keep(set(leaving) - before)
            text = text_of(error)
            kept |= dict.fromkeys(leaving, text)
        return kept

    def keep(self, addresses: Iterable[str]) -> None:
        """Let workers stay that were asked to leave."""
        self.workers.retiring.difference_update(addresses)

    # what cannot leave

    def _check_can_leave(self, address: str, leaving: Iterable[str]) -> None:
        if address not in self.workers:
            known = ", ".join(sorted(self.workers.scheduler.workers)) or "none"
            raise PlanningError(f"there is no worker {address!r}: the workers are {known}")
        held = [
            f"{', '.join(map(str, fixed))} of job {record.name!r}, and {why}"
            for record in self.jobs.running
            if (fixed := fixed_at(record, [address])) and (why := obstacle(record))
        ]
        if held:
            raise PlanningError(
                f"worker {address} cannot be drained: it hosts {'; '.join(held)}. Sources, sinks and executors of "
                "static and resource-centric jobs leave workers when their job restarts from a checkpoint. Stop or "
                "drain such a job first, or retire other workers."
            )
        hosted = [f"{one} of job {r.name!r}" for r in self.jobs.running for one in hosted_at(r, [address])]
        if hosted and not set(self.workers.usable()).difference(leaving):
            raise PlanningError(
                f"worker {address} cannot be drained: no other worker is left for {', '.join(hosted)}. Add a worker "
                "first, or stop or drain the job."
            )

    def _require_leaving(self, workers: Iterable[str]) -> None:
        """Raise if a worker is to stay after all."""
        kept = [address for address in workers if address in self.workers and address not in self.workers.retiring]
        if kept:
            raise PlanningError(f"worker {kept[0]} stays: it is needed again. Call retire again if it is to leave.")

    # sources and sinks

    async def _restart_elsewhere(self, record: JobRecord, workers: tuple[str, ...], deadline: float) -> None:
        """Restart a job that has sources, sinks or static executors on workers."""
        failures = 0
        while record.live and (fixed := fixed_at(record, workers)):
            self._require_leaving(workers)
            found = f"{', '.join(map(str, fixed))} of job {record.name!r} are still on workers that are to leave"
            if why := obstacle(record):
                # It was being submitted when the workers were checked.
                raise PlanningError(f"{found}, and {why}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{found}. These get no more cores: call retire again to go on.")
            try:
                await _by(deadline, self.restarts.leave(record))
            except (ElasticError, Relayed) as error:
                failures += 1
                if failures == RESTART_ATTEMPTS and record.live:
                    raise
                logger.info("job %r is not restarted yet: %r", record.name, error)
            if fixed_at(record, workers):
                # It starts, restarts or ends.
                await record.ended(RETRY_SECONDS)

    # homes

    async def _move_homes(self, record: JobRecord, workers: tuple[str, ...], deadline: float) -> None:
        """Move all executors of a job that are at home on workers, one by one."""
        failures = 0
        while record.live:
            # One may be on its way there.
            await _by(deadline, record.homes.still())
            moving, left = record.homes.moving, executors_at(record, workers)
            if moving is not None and moving.target in places_of(record, workers):
                left.append(moving.executor)
            if not left:
                return
            self._require_leaving(workers)
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{', '.join(map(str, left))} of job {record.name!r} are still at home on workers that are to "
                    "leave. These get no more cores: call retire again to go on."
                )
            lost = record.nodes[record.homes.node(*left[0])] not in self.workers
            if lost or hindrance(record) is not None:
                # The job ends soon, or restarts on the workers that stay, as after the loss of one.
                await record.ended(RETRY_SECONDS)
                continue
            try:
                await self._move_home(record, left[0], deadline)
                failures = 0
            except (ElasticError, Relayed) as error:
                failures += 1
                if failures == ATTEMPTS and record.live:
                    raise
                text = text_of(error)
                logger.warning("job %r: %s is at home on a worker that is to leave: %s", record.name, left[0], text)
                await record.ended(RETRY_SECONDS)

    async def _move_home(self, record: JobRecord, executor: ExecutorId, deadline: float) -> None:
        """Move an executor; a move that takes longer goes on after the deadline."""
        home = record.homes.node(*executor)
        if executor not in executors_at(record, self.workers.retiring):
            # The worker is lost, and the job restarts soon.
            await record.ended(RETRY_SECONDS)
            return
        chosen = self._new_home(record, executor)
        reason = f"Worker {record.nodes[home]} is to leave."
        moving = asyncio.ensure_future(self.moves.move(record, executor, chosen, reason))
        try:
            await asyncio.wait({moving}, timeout=_seconds_to(deadline))
        finally:
            if not moving.done():
                moving.add_done_callback(partial(_moved, record.name, executor))
        if moving.done():
            moving.result()

    def _new_home(self, record: JobRecord, executor: ExecutorId) -> str:
        """Return the worker that an executor moves to.

        Raises
        ------
        PlanningError
            If no worker is left.
        """
        held, usable = self.jobs.held(), self.workers.usable()
        own, nodes = record.cores[executor.component, executor.index], record.nodes
        # One that hangs would be the best choice at each attempt.
        stay = [one for one in usable if one in nodes or self.membership.may_try(one)] or usable
        candidates = []
        for place, address in enumerate(stay):
            node = nodes.index(address) if address in nodes else None
            at_home = 0 if node is None else len(record.homes.at(node))
            cores = 0 if node is None else own.get(node, 0)
            free = self.workers.slots(address) - held.get(address, 0)
            candidates.append(HomeCandidate(place, free, cores, at_home))
        chosen = new_home(candidates, sum(own.values()))
        if chosen is None:
            raise PlanningError(f"no worker is left for {executor} of job {record.name!r}: add one")
        return stay[chosen]

    # tasks

    async def _drained(self, record: JobRecord, workers: Iterable[str], deadline: float) -> None:
        """Return when no task of a job is left on workers, or the job has ended."""
        ended = asyncio.ensure_future(record.ended())
        try:
            while record.live and (left := await self._tasks_left(record, workers, deadline, ended)):
                self._require_leaving(workers)
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
        nodes = tuple(sorted(places_of(record, workers)))
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


async def _in_one_generation(record: JobRecord, deadline: float, work: Callable[[], Awaitable[None]]) -> None:
    """Do something with a running job, and again with its next generation if it restarts meanwhile.

    Raises
    ------
    TimeoutError
        If the job still restarts after the deadline.
    """
    while record.live:
        if record.halted or record.starting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {record.name!r} is still restarting: call retire again when it runs.")
            await record.ended(RETRY_SECONDS)
            continue
        generation = record.spec.generation
        try:
            return await work()
        except (ElasticError, Relayed) as error:
            if not await is_over(record, generation, isinstance(error, NodeLost)) and record.live:
                raise
            logger.info("job %r restarts while it leaves workers: %r", record.name, error)


async def _by(deadline: float, waited: Coroutine[Any, Any, None]) -> None:
    """Return when something has happened, or at a deadline."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(waited, _seconds_to(deadline))


def _seconds_to(deadline: float) -> float | None:
    return None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())


def _moved(job: str, executor: ExecutorId, moving: asyncio.Future[Any]) -> None:
    if not moving.cancelled() and (error := moving.exception()) is not None:
        text = text_of(error)
        logger.warning("job %r: %s stays on a worker that was to leave: %s", job, executor, text)


def executors_at(record: JobRecord, workers: Iterable[str]) -> list[ExecutorId]:
    """Return the executors of a job that are at home on workers."""
    return [one for node in sorted(places_of(record, workers)) for one in record.homes.at(node)]


def hosted_at(record: JobRecord, workers: Iterable[str]) -> list[ExecutorId]:
    """Return the sources, sinks and executors of a job on workers."""
    return [*dict.fromkeys((*fixed_at(record, workers), *executors_at(record, workers)))]
