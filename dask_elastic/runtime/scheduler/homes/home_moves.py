"""Moves of homes: checks, exclusion of checkpoints, and the calls to the old and the new home.

Notes
-----
Decisions 76 and 84. The old home drives the move; see `dask_elastic.runtime.protocol.home_calls` for the calls. It
first copies the state, while checkpoints, changes of cores and moves of shards go on.

The scheduler decides when a move can no longer be cancelled: just before it calls the old home to move the executor.
Until then the loss of the new home cancels the move. From then on the loss of either home ends the generation, as does
an unknown error of the move.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from dask_elastic.control.explanation.amounts import size
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.home_calls import CancelHome, CopyHome, HomeMoved, MoveHome, PrepareHome
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, load_error, text_of
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints
from dask_elastic.runtime.scheduler.core_changes import CoreChanges, homes
from dask_elastic.runtime.scheduler.homes.job_homes import MovingHome
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.membership import Membership
from dask_elastic.runtime.scheduler.worker_calls import unless_over
from dask_elastic.vocab.errors import ElasticError, JobEnded, MoveRefused, NodeLost, PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import HomeChange, HomeForecast

logger = logging.getLogger("dask_elastic.scheduler")

CANCEL_SECONDS = 10.0
"""Timeout of the call that ends a prepared move."""


class HomeMoves:
    """Moves the homes of executors while jobs run, one of each job at a time.

    Parameters
    ----------
    cores : CoreChanges
        Has the workers, the jobs and the calls; moves cores to the new home.
    membership : Membership
        Lets the worker of the new home join the job.
    checkpoints : Checkpoints
        Takes no checkpoint during a move, which waits for the one in progress.
    failed : callable
        ``failed(record, executor, error)`` ends a generation in which a move has failed at an unknown point.
    moved : callable
        ``moved(record, changes, reason)`` is called after each move, with the one change.
    """

    def __init__(
        self,
        cores: CoreChanges,
        membership: Membership,
        checkpoints: Checkpoints,
        failed: Callable[[JobRecord, ExecutorId, Exception], None],
        moved: Callable[[JobRecord, tuple[HomeChange, ...], str], None],
    ):
        self.cores = cores
        self.workers, self.jobs, self.calls = cores.workers, cores.jobs, cores.calls
        self.membership = membership
        self.checkpoints = checkpoints
        self._failed = failed
        self._moved = moved

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [job_calls.MoveExecutor.handled_by(self.move_executor)]

    async def move_executor(self, call: job_calls.MoveExecutor) -> None:
        """Move the home of an executor to a worker, as a user requests; see `move`."""
        record = self.jobs.record(call.job)
        _check(record)
        homes(record, call.operator, call.executor)
        await self.move(record, ExecutorId(call.operator, call.executor), call.worker, "A user moved it.")

    async def move(
        self, record: JobRecord, executor: ExecutorId, address: str, reason: str, forecast: HomeForecast | None = None
    ) -> HomeChange:
        """Move the home of an executor to a worker, after the checkpoint in progress; returns when it has begun there.

        Parameters
        ----------
        record : JobRecord
            The job.
        executor : ExecutorId
            Which executor.
        address : str
            The worker, which may join the job for this.
        reason : str
            Why, as a sentence for people.
        forecast : HomeForecast, optional
            What the planner expects that asks for the move.

        Raises
        ------
        MoveRefused
            If the move cannot begin, or the executor has finished; it stays where it is.
        JobEnded, PlanningError
            If the job does not run, or is restarted meanwhile.
        NodeLost
            If the new home is lost before the move; the executor stays where it is.
        """
        _check(record)
        self._check_worker(record, address)
        if address not in record.spec.nodes:
            error = await self.membership.join(record, address)
            _check(record)
            self._check_worker(record, address)
            if address not in record.spec.nodes:
                why = "it has left again" if error is None else text_of(error)
                raise MoveRefused(
                    f"worker {address} could not join job {record.name!r}: {why}. See its log, then try again."
                )
        generation, job_homes = record.spec.generation, record.homes
        if record.nodes[job_homes.node(*executor)] == address:
            raise MoveRefused(f"{executor} of job {record.name!r} is at home on worker {address} already")
        moving = job_homes.begin(executor, record.spec.nodes.index(address))
        try:
            # What changes during a checkpoint that must end first would have to be sent while rows wait.
            async with self._between(record, moving):
                self._check_target(record, moving, address)
            await self._copy(record, moving, generation)
            change = replace(await self._exclusively(record, moving, generation, address), forecast=forecast)
        except Exception:  # whatever it is, neither home keeps what was begun there
            if record.live and record.runs(generation):
                await self._cancel(record, moving)
            raise
        finally:
            job_homes.end()
        self._moved(record, (change,), _sentence(change, reason))
        await self._update_guests(record, generation, moving)
        return change

    def _check_worker(self, record: JobRecord, address: str) -> None:
        """Raise if a worker cannot become a home."""
        if address not in self.workers:
            known = ", ".join(self.workers.usable()) or "none"
            raise MoveRefused(f"there is no worker {address!r}: choose from {known}")
        if address in self.workers.retiring:
            raise MoveRefused(f"worker {address} is to leave: it becomes no home. Choose another one.")
        status = self.workers.status(address)
        if status != "running":
            raise MoveRefused(
                f"worker {address} is {status}: it becomes no home. Wait until it runs, or choose another."
            )

    def _check_target(self, record: JobRecord, moving: MovingHome, address: str) -> None:
        """Raise if a home does not move any more, or its new worker has become none, since the move was begun."""
        _check(record)
        # Its place in the job may be that of another worker by now.
        self._check_worker(record, address)
        if record.nodes[moving.target] != address:
            raise NodeLost(f"worker {address} was lost before {moving.executor} moved there: it stays where it is")

    async def _copy(self, record: JobRecord, moving: MovingHome, generation: int) -> None:
        """Have the old home copy the state to the new one; an error leaves the executor where it is."""
        source = record.nodes[moving.source]
        call = CopyHome(*record.generation_id, *moving.executor, moving.table)
        try:
            copied = await unless_over(record, self.calls.of_home(record, source, call), _gone)
        except Exception as error:
            if not record.live or not record.runs(generation):
                raise _gone(record) from error
            if isinstance(error, Relayed):
                text = text_of(error)
                raise MoveRefused(f"{moving.executor} of job {record.name!r} stays on {source}: {text}") from error
            raise
        if not record.live or not record.runs(generation):
            raise _gone(record)
        logger.info("job %r: the state of %s is copied: %s", record.name, moving.executor, copied)

    @contextlib.asynccontextmanager
    async def _between(self, record: JobRecord, moving: MovingHome) -> AsyncIterator[None]:
        """Take no checkpoint while the context lasts, when the one in progress has ended; the job may finish before."""
        moving.waits = True
        try:
            async with self.checkpoints.between(record, _gone):
                moving.waits = False
                yield
        finally:
            moving.waits = False

    async def _exclusively(self, record: JobRecord, moving: MovingHome, generation: int, address: str) -> HomeChange:
        component, index = moving.executor
        # Of all its executors, too: their plan of windows changes at the homes of one moment.
        plan, cores = record.changing[component, -1], record.changing[component, index]
        # They are locked last: while a checkpoint takes long, more cores may be what it needs.
        async with self._between(record, moving), plan, cores:
            if not record.runs(generation):
                raise _gone(record)
            self._check_target(record, moving, address)
            return await self._move(record, moving, generation)

    async def _move(self, record: JobRecord, moving: MovingHome, generation: int) -> HomeChange:
        source, target = record.nodes[moving.source], record.nodes[moving.target]
        which = (*record.generation_id, *moving.executor)
        logger.info("job %r: the home of %s moves from %s to %s", record.name, moving.executor, source, target)
        await self._prepare(record, moving, target, PrepareHome(*which, dict(record.homes.tables)))
        record.homes.depart()
        key = (moving.executor.component, moving.executor.index)
        moving.cores = self.cores.following(record, key, moving.source, moving.target)
        cores = max(1, record.cores[key].get(moving.target, 0) + moving.cores)
        try:
            call = MoveHome(*which, moving.table, cores)
            answer = await unless_over(record, self.calls.of_home(record, source, call), _gone)
        except Exception as error:  # whatever it is, only a refusal leaves the executor where it is
            if not record.live or not record.runs(generation):
                raise _gone(record) from error
            refusal = _refusal(error)
            if refusal is None:
                self._failed(record, moving.executor, error)
                raise
            moving.begun = False
            raise MoveRefused(f"{moving.executor} of job {record.name!r} stays on {source}: {refusal}") from error
        if not record.live or not record.runs(generation):
            raise _gone(record)
        await self._arrive(record, moving, answer, generation)
        sent, paused = float(answer.nbytes), float(answer.paused_bytes)
        return HomeChange(moving.executor, source, target, sent, answer.pause, paused_bytes=paused)

    async def _prepare(self, record: JobRecord, moving: MovingHome, target: str, call: PrepareHome) -> None:
        """Have the new home hold what arrives; raises if it cannot, or has left the job meanwhile."""
        try:
            await unless_over(record, self.calls.one(target, call), _gone)
        except Relayed as error:
            text = text_of(error)
            raise MoveRefused(f"worker {target} cannot be the home of {moving.executor}: {text}") from error
        if not record.runs(call.generation) or not record.live:
            raise _gone(record)
        # From here to the call of the old home nothing else runs on the event loop.
        if record.nodes[moving.target] != target or target in record.expelling or target not in self.workers:
            raise NodeLost(f"worker {target} was lost before {moving.executor} moved there: it stays where it is")
        if target in self.workers.retiring:
            raise MoveRefused(f"worker {target} is to leave: it becomes no home. Choose another one.")

    async def _cancel(self, record: JobRecord, moving: MovingHome) -> None:
        """End what the homes have begun; the old one first, since it sends to the new one."""
        call = CancelHome(*record.generation_id, *moving.executor, moving.table.version)
        for node in (moving.source, moving.target):
            address = record.nodes[node]
            try:
                await asyncio.wait_for(self.calls.one(address, call), CANCEL_SECONDS)
            except (ElasticError, Relayed, TimeoutError) as error:
                # The next generation, or the next move there, begins anew.
                logger.info("job %r: %s of %s: %s", record.name, call.operation, address, error)
            if not record.live or not record.runs(call.generation):
                return

    async def _arrive(self, record: JobRecord, moving: MovingHome, answer: HomeMoved, generation: int) -> None:
        """Note that an executor has begun at its new home, and move its cores there."""
        key = (moving.executor.component, moving.executor.index)
        record.homes.arrived()
        wanted = _after_move(record.cores[key], moving)
        record.cores[key] = {node: count for node, count in answer.cores.items() if count}
        moving.cores = 0
        record.chosen_homes[key] = record.nodes[moving.target]
        # Their last reports were sent before the executor had moved.
        for node in (moving.target, moving.source):
            await self._take_report(record, node, generation)
        if not record.live or not record.runs(generation):
            # The next generation numbers its nodes anew.
            return
        try:
            await self.cores.give(record, key, wanted)
        except (ElasticError, Relayed) as error:
            cause = text_of(error)
            logger.warning("job %r: %s has other cores than before it moved: %s", record.name, moving.executor, cause)

    async def _take_report(self, record: JobRecord, node: int, generation: int) -> None:
        """Replace the last report of a node by a new one, or drop it if there is none."""
        if not record.runs(generation):
            return
        address, call = record.nodes[node], part_calls.Report(*record.generation_id)
        try:
            report = await self.calls.one(address, call)
        except (ElasticError, Relayed) as error:
            logger.info("job %r: no report of %s: %s", record.name, address, error)
            if record.runs(generation):
                record.reports.pop(node, None)
            return
        if record.runs(generation):
            record.receive(node, report)

    async def _update_guests(self, record: JobRecord, generation: int, moving: MovingHome) -> None:
        """Note which nodes only host remote tasks now."""
        async with record.membership:
            if not record.live or not record.runs(generation):
                return
            kept = [guest for guest in record.spec.guests if guest not in record.homes.needed]
            if moving.source not in record.homes.needed and moving.source not in kept:
                kept.append(moving.source)
            record.spec = replace(record.spec, guests=tuple(kept))


def hindrance(record: JobRecord) -> ElasticError | None:
    """Return why no executor of a job moves at present, whichever it is; None if they do."""
    name = f"job {record.name!r}"
    if not record.live:
        return JobEnded(f"{name} has {record.status.value}: its executors do not move any more")
    if not record.elastic:
        return PlanningError(
            f"{name} has the paradigm {record.spec.options.paradigm!r}: its executors do not move. Submit it with "
            'paradigm="executor-centric".'
        )
    if record.status is not Status.RUNNING or record.halted or record.finishing:
        status = "finishing" if record.finishing else record.status.value
        return MoveRefused(f"{name} is {status}: executors move only while it is running")
    if record.checkpoints is not None and (record.checkpoints.stopping or record.checkpoints.held):
        return MoveRefused(f"{name} is being stopped with a savepoint: its executors do not move any more")
    if record.checkpoints is not None and record.checkpoints.leaving:
        return MoveRefused(f"{name} is about to restart without workers that are to leave: move executors after that")
    return None


def _after_move(cores: Mapping[int, int], moving: MovingHome) -> dict[int, int]:
    """Return the cores of an executor by node, of which some have moved with its home."""
    # A node may have been lost meanwhile, and its cores with it.
    moved = min(moving.cores, cores.get(moving.source, 0))
    after = {**cores, moving.target: cores.get(moving.target, 0) + moved}
    after[moving.source] = cores.get(moving.source, 0) - moved
    return {node: count for node, count in after.items() if count}


def _check(record: JobRecord) -> None:
    if (error := hindrance(record)) is not None:
        raise error


def _gone(record: JobRecord) -> ElasticError:
    if not record.live:
        return JobEnded(f"job {record.name!r} has {record.status.value} while an executor moved")
    return PlanningError(f"job {record.name!r} was restarted while an executor moved: look where it is, then try again")


def _refusal(error: Exception) -> BaseException | None:
    """Return the error of a home if it says that the executor stays; the scheduler may lack the classes of others."""
    if not isinstance(error, Relayed):
        return None
    try:
        cause = load_error(error.data)
    except Exception:  # loading an object of user code may raise any exception
        return None
    return cause if isinstance(cause, MoveRefused) else None


def _sentence(change: HomeChange, reason: str) -> str:
    return (
        f"{reason} The home of {change.executor} has moved from {change.source} to {change.target} with "
        f"{size(change.moved_bytes)} of state; its rows waited for {1_000 * change.pause:.0f} ms, while the last "
        f"{size(change.paused_bytes)} were sent."
    )
