"""Questions of clients about a job that its nodes answer: moves, recoveries, assignments, state, collected rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import A, HandledCall
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.concurrent_calls import all_of
from dask_elastic.runtime.protocol.job_description import ExecutorAssignment, Recovery, ShardMove
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.protocol.remote_errors import Relayed
from dask_elastic.runtime.scheduler.core_changes import homes
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.checkpoint import JobRestart
from dask_elastic.vocab.errors import NodeLost, PlanningError, UnknownOperator
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.text.shown_url import shown_url

T = TypeVar("T")

LOSS_SECONDS = 5.0
"""Seconds that a restart may begin after a node was found to be lost; after them, the loss is the answer."""


class JobQueries:
    """Passes questions to the nodes of a job and joins their answers.

    A job that restarts answers when it runs again.

    Parameters
    ----------
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the workers.
    """

    def __init__(self, jobs: JobTable, calls: WorkerCalls):
        self.jobs = jobs
        self.calls = calls

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [
            job_calls.Moves.handled_by(self.moves),
            job_calls.Recoveries.handled_by(self.recoveries),
            job_calls.Restarts.handled_by(self.restarts),
            job_calls.Assignment.handled_by(self.assignment),
            job_calls.State.handled_by(self.state),
            job_calls.StatePlaces.handled_by(self.state_places),
            job_calls.Collect.handled_by(self.collect),
            job_calls.DeadLetters.handled_by(self.dead_letters),
        ]

    async def moves(self, call: job_calls.Moves) -> tuple[ShardMove, ...]:
        """Return the newest finished shard moves of every executor."""
        return await self._answered(
            call.job, lambda record: self._joined(record, part_calls.Moves(*record.generation_id))
        )

    async def recoveries(self, call: job_calls.Recoveries) -> tuple[Recovery, ...]:
        """Return the newest losses of remote tasks of every executor."""
        return await self._answered(
            call.job, lambda record: self._joined(record, part_calls.Recoveries(*record.generation_id))
        )

    async def restarts(self, call: job_calls.Restarts) -> tuple[JobRestart, ...]:
        """Return the newest restarts of a job from a checkpoint; none of a job without checkpoints."""
        state = self.jobs.record(call.job).checkpoints
        return () if state is None else tuple(state.restarted)

    async def assignment(self, call: job_calls.Assignment) -> tuple[ExecutorAssignment, ...]:
        """Return shards and tasks of every executor."""

        async def ask(record: JobRecord) -> tuple[ExecutorAssignment, ...]:
            async with _still(record):
                return await self._assignment(record)

        return await self._answered(call.job, ask)

    async def _assignment(self, record: JobRecord) -> tuple[ExecutorAssignment, ...]:
        """Ask all nodes, again if an executor was on its way to another home: it is missing then, or listed twice."""
        homes = record.homes
        while True:
            before = homes.current
            found = await self._joined(record, part_calls.Assignment(*record.generation_id))
            listed = sorted((one.operator, one.executor) for one in found)
            is_still = before is not None and homes.current == before
            if listed == sorted(record.cores) or is_still or record.homes is not homes:
                return found
            await homes.settled()

    async def state(self, call: job_calls.State) -> tuple[Payload, ...]:
        """Return the state of a stateful operator, or the row of one key."""
        return await self._answered(call.job, lambda record: self._state(record, call))

    async def _state(self, record: JobRecord, call: job_calls.State) -> tuple[Payload, ...]:
        component = record.spec.component_of(call.operator)
        async with _still(record):
            calls = (
                self._state_of(record, ExecutorId(component, index), call)
                for index, _ in homes(record, component, None)
            )
            found = tuple(part for parts in await all_of(calls) for part in parts)
        empty = record.spec.summary(component).empty_state_of(call.operator)
        # Before its first batch an executor does not know its columns.
        return (Payload(empty),) if not found and call.key is None and empty is not None else found

    async def _state_of(self, record: JobRecord, executor: ExecutorId, call: job_calls.State) -> tuple[Payload, ...]:
        """Read the state of an executor at its home; once it has arrived if it is on its way to another one."""
        asked = part_calls.State(*record.generation_id, call.operator, executor.index, call.key, call.first)
        while True:
            await record.homes.settled()
            home = record.homes.node(*executor)
            try:
                return await self.calls.one(record.nodes[home], asked)
            except (NodeLost, Relayed) as error:
                await record.homes.settled()
                if record.spec.generation != asked.generation or record.homes.node(*executor) == home:
                    if not record.live and not self.calls.present(record.nodes[home]):
                        raise _lost_state(record, call.operator, error) from error
                    raise

    async def state_places(self, call: job_calls.StatePlaces) -> job_calls.StatePlacesAnswer:
        """Return where the state of a stateful operator is, when no executor is on its way to another home."""
        record = await self.jobs.settled(call.job)
        if record.spec.groups and record.live:
            raise PlanningError(
                f"job {call.job!r} has the paradigm {RESOURCE!r}: keys move between the executors, which a frame reads "
                "at different times. Use to_arrow() or to_pandas() while the job runs, or to_dask() when it has ended."
            )
        await record.homes.settled()
        component = record.spec.component_of(call.operator)
        addresses = tuple(address for _, address in homes(record, component, None))
        _, generation = record.generation_id
        empty = record.spec.summary(component).empty_state_of(call.operator)
        return job_calls.StatePlacesAnswer(generation, addresses, empty)

    async def collect(self, call: job_calls.Collect) -> tuple[Payload, ...]:
        """Return the rows that a sink keeps for the client."""
        record = self.jobs.record(call.job)
        sinks = [s.name for s in record.spec.summaries if s.kind == "sink"]
        if call.operator not in sinks:
            raise UnknownOperator(f"job {call.job!r} has no sink {call.operator!r}: choose from {sinks}")
        return await self._answered(
            call.job, lambda record: self._joined(record, part_calls.Collect(*record.generation_id, call.operator))
        )

    async def dead_letters(self, call: job_calls.DeadLetters) -> tuple[Payload, ...]:
        """Return the dead letters of an operator."""
        record = self.jobs.record(call.job)
        known = [name for s in record.spec.summaries for name in s.operators]
        if call.operator not in known:
            raise UnknownOperator(f"job {call.job!r} has no operator {call.operator!r}: choose from {known}")
        return await self._answered(
            call.job, lambda record: self._joined(record, part_calls.DeadLetters(*record.generation_id, call.operator))
        )

    async def _answered(self, job: str, ask: Callable[[JobRecord], Awaitable[T]]) -> T:
        """Ask the nodes of a job; if it restarts meanwhile, ask those of its next generation."""
        while True:
            record = await self.jobs.settled(job)
            generation = record.spec.generation
            try:
                return await ask(record)
            except (NodeLost, Relayed) as error:
                if not await is_over(record, generation, isinstance(error, NodeLost)):
                    raise

    async def _joined(self, record: JobRecord, call: PartCall[tuple[A, ...]]) -> tuple[A, ...]:
        return tuple(one for part in await self.calls.all(record, call) for one in part)


@contextlib.asynccontextmanager
async def _still(record: JobRecord) -> AsyncIterator[None]:
    """Run a block while no key groups move: those on their way would be missing, or be read twice."""
    while True:
        groups = record.groups
        async with groups.still if record.spec.groups else contextlib.nullcontext():
            # The job may have restarted meanwhile: then those of the next generation must not move.
            if record.groups is groups:
                yield
                return


async def is_over(record: JobRecord, generation: int, lost: bool) -> bool:
    """Return whether another generation of a job follows one whose nodes did not answer.

    Parameters
    ----------
    record : JobRecord
        The job.
    generation : int
        The generation that was called.
    lost : bool
        Whether a node was lost, which may be found before the restart that it causes begins.
    """
    if lost and record.live and record.checkpoints is not None and record.runs(generation):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(record.over(), LOSS_SECONDS)
    return record.live and not record.runs(generation)


def _lost_state(record: JobRecord, operator: str, error: Exception) -> NodeLost:
    """Return the error of the state of an ended job that a worker has taken along, with where to read it."""
    url = record.spec.options.checkpoint
    folder = None if url is None else shown_url(url)
    instead = (
        "read the state before workers are closed, or write the results to a sink."
        if folder is None
        else f"read the state of its newest checkpoint with dask_elastic.read_state({folder!r}, {operator!r})."
    )
    return NodeLost(f"{error}. Job {record.spec.job!r} has ended: {instead}")
