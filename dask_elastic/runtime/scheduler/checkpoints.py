"""The coordinator of checkpoints: begins them, collects what instances acknowledge, and publishes complete ones."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.sweep import sweep
from dask_elastic.control.checkpoint_progress import CheckpointProgress
from dask_elastic.runtime.protocol import checkpoint_calls, job_calls, part_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.checkpoint_parts import ExecutorPart
from dask_elastic.runtime.protocol.job_spec import ComputeSummary, JobSpec
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, text_of
from dask_elastic.runtime.scheduler.checkpoint_folders import complete, in_thread
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.spooled_ledger import snapshots_of
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls, unless_over
from dask_elastic.vocab.checkpoint import CheckpointDescription
from dask_elastic.vocab.errors import CheckpointError, CheckpointSuperseded, ElasticError, JobEnded
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.text.shown_url import shown_url

logger = logging.getLogger("dask_elastic.scheduler")

LONGEST_SECONDS = 600.0
"""A checkpoint that is not complete after so many seconds is given up."""

RETRY_SECONDS = 1.0
"""The least time between a checkpoint that was given up and the next one."""

LOOK_SECONDS = 0.1
"""Seconds between two looks whether a job has restarted while its sinks commit."""


class Checkpoints:
    """Takes the checkpoints of all jobs.

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
            checkpoint_calls.Acknowledge.handled_by(self.acknowledge),
            checkpoint_calls.CheckpointFailed.handled_by(self.failed),
            checkpoint_calls.Committed.handled_by(self.committed),
            checkpoint_calls.SinkOpened.handled_by(self.sink_opened),
            checkpoint_calls.RequestCheckpoint.handled_by(self.request),
            job_calls.TakeCheckpoint.handled_by(self.take_now),
            job_calls.Checkpoints.handled_by(self.list),
        ]

    # what workers and clients say

    def _current(self, call: checkpoint_calls.CheckpointCall) -> JobCheckpoints | None:
        """Return the checkpoints of the job that a worker speaks of; None if its generation has ended."""
        record = self.jobs.get(call.job)
        if record is None or not record.live or record.halted or record.spec.generation != call.generation:
            return None
        return record.checkpoints

    async def acknowledge(self, call: checkpoint_calls.Acknowledge) -> None:
        """Take what an instance has contributed to the checkpoint in progress."""
        state = self._current(call)
        if state is None or state.progress is None or state.progress.number != call.number:
            return
        if state.progress.acknowledge(ExecutorId(call.component, call.instance), call.part):
            state.settle()

    async def failed(self, call: checkpoint_calls.CheckpointFailed) -> None:
        """Give up the checkpoint in progress, because an instance could not contribute to it."""
        state = self._current(call)
        if state is not None and state.progress is not None and state.progress.number == call.number:
            state.settle(call.error)

    async def committed(self, call: checkpoint_calls.Committed) -> None:
        """Note that an instance of a sink has committed a checkpoint."""
        state = self._current(call)
        if state is not None:
            state.note_commit(call.number, ExecutorId(call.component, call.instance))

    async def sink_opened(self, call: checkpoint_calls.SinkOpened) -> None:
        """Note that a writer of a sink has opened, also if its job is about to restart."""
        record = self.jobs.get(call.job)
        if record is not None and record.checkpoints is not None and record.spec.generation == call.generation:
            record.checkpoints.opened.add(call.component)

    async def request(self, call: checkpoint_calls.RequestCheckpoint) -> None:
        """Take a checkpoint soon."""
        state = self._current(call)
        if state is not None:
            state.requested.set()

    async def list(self, call: job_calls.Checkpoints) -> tuple[CheckpointDescription, ...]:
        """Return the newest checkpoints of a job, oldest first."""
        return tuple(taken_by(self.jobs.record(call.job)).descriptions)

    async def take_now(self, call: job_calls.TakeCheckpoint) -> CheckpointDescription:
        """Take a checkpoint, and return it when it is complete; see `take`."""
        return await self.take(self.jobs.record(call.job))

    async def take(self, record: JobRecord) -> CheckpointDescription:
        """Have a checkpoint taken that begins from now on, and return it when it is complete.

        Raises
        ------
        CheckpointError
            If it is given up, or the job takes no checkpoints.
        JobEnded
            If the job has ended.
        """
        state = taken_by(record)
        first = state.last + 1
        while True:
            taken = next((taken for taken in state.descriptions if taken.number >= first), None)
            if taken is not None and taken.error is None:
                return taken
            if not record.live:
                raise JobEnded(f"job {record.name!r} has {record.status.value}: it takes no more checkpoints")
            if taken is not None:
                raise CheckpointError(f"job {record.name!r}: checkpoint {taken.number} was given up: {taken.error}")
            if state.last < first:
                # Once it has begun, another request would take one more.
                state.requested.set()
            await first_of(state.next_end(), record.ended(), timeout=LONGEST_SECONDS)

    # taking them

    async def run(self, record: JobRecord) -> None:
        """Take checkpoints of one generation of a job until it ends.

        Raises
        ------
        CheckpointSuperseded
            If another scheduler has continued the job.
        """
        state = record.checkpoints
        generation = record.spec.generation
        interval = record.spec.options.checkpoint_interval
        late = False
        # Rows are acknowledged that only a checkpoint and the spool behind it bring back after the scheduler is lost.
        # Spark's epochs need none: a job that is submitted again finds them.
        spooled = any(summary.spooled and not summary.epochs for summary in record.spec.summaries)
        at_once = state is not None and not state.newest and spooled
        due = time.monotonic() + (0.0 if at_once else interval)
        while state is not None and record.live and record.runs(generation):
            await first_of(state.requested.wait(), record.ended(), timeout=max(0.0, due - time.monotonic()))
            if state.failed:
                # A sink that waits for its last commit requests the next one at once.
                await first_of(record.ended(), timeout=min(interval, RETRY_SECONDS))
            if not (record.live and record.runs(generation)):
                return
            if state.held:
                # One that is given up would have the sources continue behind the savepoint.
                await first_of(record.ended(), timeout=min(interval, RETRY_SECONDS))
                continue
            state.requested.clear()
            began = time.monotonic()
            async with state.exclusive:
                # The job may have ended, or restarted, while a home moved.
                if record.live and record.runs(generation):
                    await self._take(record, state, generation)
            due = began + interval
            if time.monotonic() > due and not late:
                late = True
                logger.warning(
                    "job %r: checkpoints take longer than checkpoint_interval, %g s: the next one waits for the last",
                    record.name, interval,
                )  # fmt: skip

    @contextlib.asynccontextmanager
    async def between(self, record: JobRecord, gone: Callable[[JobRecord], ElasticError]) -> AsyncIterator[None]:
        """Take no checkpoint of a job while the context lasts; it begins when the one in progress has ended.

        A checkpoint that becomes due meanwhile begins before what waits for a context since then.

        Parameters
        ----------
        record : JobRecord
            The job.
        gone : callable
            Makes the error if the generation of the job ends meanwhile.

        Raises
        ------
        ElasticError
            The error that `gone` makes, if the generation ends before the context begins.
        """
        if record.checkpoints is None:
            yield
            return
        exclusive = record.checkpoints.exclusive
        acquiring = asyncio.ensure_future(exclusive.acquire())
        try:
            await unless_over(record, acquiring, gone)
            yield
        finally:
            # What waits here may have been cancelled when the lock was acquired already.
            if acquiring.done() and not acquiring.cancelled():
                exclusive.release()

    async def _take(self, record: JobRecord, state: JobCheckpoints, generation: int) -> None:
        number = state.next_number()
        progress: CheckpointProgress[bytes] = CheckpointProgress(number, instances(record.spec), time.time())
        state.begin(progress)
        began = time.monotonic()
        try:
            await self._begin(record, state, number)
            async with state.publishing:
                if not record.runs(generation):
                    return
                manifest, held = _manifest(record, state, progress)
                covered = await in_thread(complete, state.url, manifest, snapshots_of(state.ledgers))
                seconds = time.monotonic() - began
                state.begin_commits(number, (i for i in instances(record.spec) if i.component in manifest.prepared))
                state.completed(CheckpointDescription(number, progress.started, seconds, manifest.new_bytes, held))
                for source, records in covered.items():
                    state.ledgers[source].cover(records)
        except Exception as error:  # whatever it is, the job goes on, and the next checkpoint is taken
            if record.live and record.runs(generation):
                await self._give_up(record, state, progress, began, error)
                if isinstance(error, CheckpointSuperseded):
                    raise
            return
        if record.live and record.runs(generation):
            await self.calls.tell(record, part_calls.CommitCheckpoint(*record.generation_id, number))
            await self._sweep(record, state)

    async def _begin(self, record: JobRecord, state: JobCheckpoints, number: int) -> None:
        """Begin a checkpoint, and wait until all instances have acknowledged it.

        Raises
        ------
        Relayed
            The error of an instance.
        TimeoutError
            If it takes too long.
        CheckpointError
            If the job ends meanwhile.
        """
        await self.calls.all(record, part_calls.BeginCheckpoint(*record.generation_id, number, state.halts))
        settled = asyncio.ensure_future(state.settled())
        try:
            await first_of(settled, record.ended(), timeout=LONGEST_SECONDS)
            if not settled.done():
                assert state.progress is not None, "a checkpoint is in progress"
                missing = ", ".join(map(str, sorted(state.progress.missing)[:5]))
                if not record.live:
                    raise CheckpointError("the job has ended")
                raise TimeoutError(f"no acknowledgement of {missing} within {LONGEST_SECONDS:g} s")
            if (error := settled.result()) is not None:
                raise Relayed(error)
        finally:
            settled.cancel()

    async def _give_up(
        self,
        record: JobRecord,
        state: JobCheckpoints,
        progress: CheckpointProgress[bytes],
        began: float,
        error: Exception,
    ) -> None:
        text, seconds = _text(error), time.monotonic() - began
        logger.warning("job %r: checkpoint %d was given up: %s", record.name, progress.number, text)
        state.completed(CheckpointDescription(progress.number, progress.started, seconds, error=text))
        await self.calls.tell(record, part_calls.AbandonCheckpoint(*record.generation_id, progress.number))

    async def _sweep(self, record: JobRecord, state: JobCheckpoints) -> None:
        try:
            keep = record.spec.options.checkpoint_keep
            catalog = Catalog(await in_thread(CheckpointFolder, state.url))
            running = {summary.name for summary in record.spec.summaries}
            await in_thread(functools.partial(sweep, catalog, keep, kept_from=state.kept_from, running=running))
            # A checkpoint that is being copied to a savepoint may need the epochs that later ones cover.
            for ledger in () if state.kept_from is not None else state.ledgers.values():
                await in_thread(ledger.sweep)
        except (ElasticError, OSError) as error:
            logger.warning("job %r: old checkpoints stay in %s: %s", record.name, shown_url(state.url), error)


def instances(spec: JobSpec) -> Iterable[ExecutorId]:
    """Return all that contributes to the checkpoints of a job: sources, sinks, and each compute in each executor."""
    for summary in spec.summaries:
        if summary.kind == "sink":
            nodes = range(len(spec.nodes))
            yield from (ExecutorId(summary.name, node) for node in nodes if spec.sink_inputs(summary.name, node))
        elif summary.kind == "compute":
            yield from spec.states(summary.name)
        else:
            yield from spec.instances(summary.name)


def _manifest(record: JobRecord, state: JobCheckpoints, progress: CheckpointProgress[bytes]) -> tuple[Manifest, float]:
    """Return the manifest of a checkpoint without ledgers, and how long inputs of an executor have waited at most."""
    spec = record.spec
    pickled: dict[str, dict[int, Pickled | None]] = {}
    for instance, part in progress.parts.items():
        pickled.setdefault(instance.component, {})[instance.index] = pickle.loads(part)
    states: list[OperatorState] = []
    held = 0.0
    placed: dict[str, dict[str, tuple[Pickled | None, ...]]] = {"source": {}, "sink": {}}
    for summary in spec.summaries:
        if summary.kind != "compute":
            found = pickled.get(summary.name, {})
            placed[summary.kind][summary.name] = tuple(found.get(index) for index in range(max(found, default=-1) + 1))
            continue
        for compute in summary.computes:
            parts = _executor_parts(compute.name, pickled.get(compute.name, {}))
            held = max(held, *(part.held for part in parts))
            states.append(_operator_state(compute, summary.shards, parts))
    return Manifest(
        job=spec.job,
        number=progress.number,
        generation=spec.generation,
        started=progress.started,
        ended=time.time(),
        topology=state.topology,
        kinds={n: each.kind for each in spec.summaries for n in [one.name for one in each.computes] or [each.name]},
        states=tuple(states),
        positions=placed["source"],
        prepared=placed["sink"],
    ), held


def _operator_state(compute: ComputeSummary, shards: int, parts: list[ExecutorPart]) -> OperatorState:
    owned = tuple(part.groups for part in parts if part.groups is not None)
    return OperatorState(
        compute.name,
        compute.keys,
        len(parts),
        shards,
        tuple(part.chain for part in parts),
        None if compute.reading is None else pickle.loads(compute.reading),
        tuple(part.event_time for part in parts),
        compute.routed_by,
        owned,
        shards if owned else 0,
    )


def _executor_parts(operator: str, found: dict[int, Pickled | None]) -> list[ExecutorPart]:
    parts = [part.load(f"the state of {operator!r}") for _, part in sorted(found.items()) if part is not None]
    assert all(isinstance(part, ExecutorPart) for part in parts), f"{parts!r} are no parts of executors"
    return parts


def _text(error: Exception) -> str:
    """Return what an error says, which is the same whether the scheduler or a worker could not write."""
    told = text_of(error)
    return told if isinstance(error, ElasticError | Relayed) else f"{type(error).__name__}: {told}"


def taken_by(record: JobRecord) -> JobCheckpoints:
    """Return the checkpoints of a job; raises `CheckpointError` if it takes none."""
    if record.checkpoints is None:
        raise CheckpointError(
            f"job {record.name!r} takes no checkpoints: submit it with checkpoint=, a folder for them"
        )
    return record.checkpoints


async def first_of(*waits: Any, timeout: float) -> None:
    """Return when one of some awaitables is done, or after a time; cancels the coroutines among them."""
    futures = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        own = [future for future, wait in zip(futures, waits, strict=True) if future is not wait]
        for future in own:
            future.cancel()
        if own:
            # Awaiting each of them would take a cancellation of this call for theirs.
            await asyncio.wait(own)
    for future in own:
        if not future.cancelled():
            future.result()


async def take_committed(
    take: Callable[[JobRecord], Awaitable[CheckpointDescription]],
    record: JobRecord,
) -> tuple[CheckpointDescription, int]:
    """Have a checkpoint taken that begins from now on, and return it when all sinks have committed it.

    Parameters
    ----------
    take : callable
        `Checkpoints.take`.
    record : JobRecord
        The job, which takes checkpoints. If it restarts meanwhile, it takes another one.

    Returns
    -------
    tuple of CheckpointDescription and int
        The checkpoint, and the generation that took it.

    Raises
    ------
    CheckpointError
        If the checkpoint is given up, or is not committed in time.
    JobEnded
        If the job ends without committing it.
    """
    state = taken_by(record)
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        generation = record.spec.generation
        try:
            taken = await take(record)
        except CheckpointError:
            if record.runs(generation) or not record.live:
                raise
            continue  # the job is restarted, and takes another one then
        while record.runs(generation) and record.live and time.monotonic() < deadline:
            if state.committed >= taken.number:
                return taken, generation
            await first_of(state.next_commit(), record.ended(), timeout=LOOK_SECONDS)
        if record.status is Status.FINISHED:
            return taken, generation
        if not record.live:
            raise JobEnded(f"job {record.name!r} has {record.status.value}: its sinks commit no more checkpoints")
    raise CheckpointError(
        f"job {record.name!r}: its sinks have not committed a checkpoint within {LONGEST_SECONDS:g} s. See the "
        "workers' logs for what they wait for, then try again."
    )
