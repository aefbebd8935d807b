"""Savepoints: copies of a checkpoint in another folder, behind which a job may stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from dask_elastic.checkpoint.accepted import spooled_files
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.copied import check_empty, copy_checkpoint
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, text_of
from dask_elastic.runtime.scheduler.checkpoint_folders import in_thread
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints, take_committed, taken_by
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.checkpoint import CheckpointDescription
from dask_elastic.vocab.errors import CheckpointError, ElasticError, JobEnded

logger = logging.getLogger("dask_elastic.scheduler")


class Savepoints:
    """Takes the savepoints of all jobs.

    Parameters
    ----------
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the workers.
    checkpoints : Checkpoints
        Takes the checkpoints that are copied.
    stop : callable
        Ends a job.
    settled : callable
        ``settled(job)`` returns when no commit of Spark's epochs is in progress.
    """

    def __init__(
        self,
        jobs: JobTable,
        calls: WorkerCalls,
        checkpoints: Checkpoints,
        stop: Callable[[JobRecord], Awaitable[str]],
        settled: Callable[[str], Awaitable[None]],
    ):
        self.jobs = jobs
        self.calls = calls
        self.checkpoints = checkpoints
        self._stop = stop
        self._settled = settled
        # Two copies to one folder would use, and after a failure delete, files of each other.
        self._copying = asyncio.Lock()

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [job_calls.TakeSavepoint.handled_by(self.take)]

    async def take(self, call: job_calls.TakeSavepoint) -> CheckpointDescription:
        """Take a checkpoint and copy it to another folder, and return it when the copy is complete.

        Raises
        ------
        CheckpointError
            If the checkpoint is given up, the copy fails, or the job takes no checkpoints.
        JobEnded
            If the job has ended.
        """
        record = self.jobs.record(call.job)
        state = taken_by(record)
        target = await in_thread(CheckpointFolder, call.url)
        await in_thread(check_empty, target)
        with state.keeping(state.last + 1):
            if call.stop:
                return await self._stop_behind(record, state, target)
            taken, _ = await self._committed(record)
            await self._copy(record, state, taken, target, False)
            return taken

    async def _stop_behind(
        self, record: JobRecord, state: JobCheckpoints, target: CheckpointFolder
    ) -> CheckpointDescription:
        """Stop a job behind a savepoint; if that fails, the job continues."""
        if state.stopping:
            raise CheckpointError(f"job {record.name!r} is being stopped with another savepoint: wait for that")
        state.stopping = True
        try:
            taken, generation = await self._committed(record)
            while not await self._hold(record, state, taken):
                taken, generation = await self._committed(record)
            await self._copy(record, state, taken, target, True)
            if record.live and not record.runs(generation):
                raise CheckpointError(
                    f"job {record.name!r} was restarted while its savepoint was copied, and continues behind it. The "
                    f"savepoint in {target.shown} is complete; to stop the job, give another folder."
                )
        except BaseException:
            state.stopping = state.held = False
            if record.live:
                await self.calls.tell(record, part_calls.ContinueSources(*record.generation_id, state.last))
            raise
        await self._stop(record)
        return taken

    async def _committed(self, record: JobRecord) -> tuple[CheckpointDescription, int]:
        try:
            return await take_committed(self.checkpoints.take, record)
        except JobEnded as error:
            raise JobEnded(f"job {record.name!r} has {record.status.value}: its savepoint was not taken") from error

    async def _hold(self, record: JobRecord, state: JobCheckpoints, taken: CheckpointDescription) -> bool:
        """Have sources accept nothing more: what they acknowledge later would be in no savepoint.

        Returns
        -------
        bool
            False if the job restarts, so that sources no longer halt behind the checkpoint.

        Raises
        ------
        CheckpointError
            If a worker cannot do this.
        """
        generation = record.spec.generation
        if not record.live:
            return True
        state.held = True
        try:
            await self.calls.all(record, part_calls.HoldSources(*record.generation_id, taken.number))
        except (ElasticError, Relayed) as error:
            if record.live and not (record.status is Status.RUNNING and record.runs(generation)):
                state.held = False
                return False
            text = text_of(error)
            raise CheckpointError(
                f"job {record.name!r} continues: sources could not stop accepting rows, which the savepoint would "
                f"lack: {text}. Try again."
            ) from error
        await self._settled(record.name)
        return True

    async def _copy(
        self,
        record: JobRecord,
        state: JobCheckpoints,
        taken: CheckpointDescription,
        target: CheckpointFolder,
        stops: bool,
    ) -> None:
        async with self._copying:
            source = await in_thread(CheckpointFolder, state.url)
            manifest = await in_thread(Catalog(source).load, taken.number)
            await in_thread(check_empty, target)
            saved, accepted = await in_thread(_with_accepted, record.spec, state, source, manifest, stops)
            paths = [(file, file if isinstance(file, str) else file.path) for file in accepted]
            await in_thread(copy_checkpoint, source, saved, target, True, None, paths)


def _with_accepted(
    spec: JobSpec, state: JobCheckpoints, folder: CheckpointFolder, manifest: Manifest, stops: bool
) -> tuple[Manifest, list[FileRef | str]]:
    """Return a checkpoint as a savepoint has it, and the files with rows that sources have accepted behind it.

    If the job goes on, it reads what programs and queues have sent: the savepoint continues behind its barrier with an
    empty spool. Epochs of Spark that the ledger of the checkpoint contains are in the savepoint in any case.
    """
    accepted: list[FileRef | str] = []
    positions = dict(manifest.positions)
    for summary in spec.summaries:
        if not summary.spooled:
            continue
        if summary.epochs:
            accepted += state.ledgers[summary.name].accepted(manifest, summary.name, later=stops)
            continue
        found = [_position(pickled, summary.name) for pickled in manifest.positions.get(summary.name, ())]
        if stops:
            offsets = {
                instance: each.offset if isinstance(each.offset, int) else 0
                for instance, each in enumerate(found)
                if not each.ended
            }
            # A generation that has begun during the copy belongs to the job that goes on.
            accepted += spooled_files(folder, spec.run, summary.name, offsets, manifest.generation)
        else:
            positions[summary.name] = tuple(Pickled.of(replace(each, offset=None, skip=0)) for each in found)
    return replace(manifest, positions=positions), accepted


def _position(pickled: Pickled | None, source: str) -> SourcePosition:
    if pickled is None:
        return SourcePosition()
    position = pickled.load(f"the position of source {source!r}")
    assert isinstance(position, SourcePosition), f"{position!r} is no position of a source"
    return position
