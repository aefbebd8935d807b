"""Restarts of jobs that have lost a home, or are to leave workers, from their newest checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.runtime.protocol.job_status import JobEvent, Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error, load_error, text_of
from dask_elastic.runtime.scheduler.checkpoint_folders import in_thread, next_generation, next_start
from dask_elastic.runtime.scheduler.core_changes import CoreChanges
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_starts import JobStarts
from dask_elastic.runtime.scheduler.part_ends import PartEnds
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.checkpoint import CheckpointDescription, JobRestart
from dask_elastic.vocab.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointSuperseded,
    ElasticError,
    NodeLost,
)
from dask_elastic.vocab.text.shown_url import shown_url

logger = logging.getLogger("dask_elastic.scheduler")

FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
"""Seconds before the second attempt to restart without a new checkpoint in between; they double with each attempt."""

WORKER_SECONDS = 60.0
LOOK_SECONDS = 0.1
"""Seconds for which an attempt waits for a worker if there is none, and between two looks: Dask has no event for it."""


class Restarts:
    """Restarts jobs with checkpoints after the loss of a home, a source or a sink, or to leave workers.

    Parameters
    ----------
    starts : JobStarts
        Starts generations.
    calls : WorkerCalls
        Calls the workers.
    ends : PartEnds
        Ends the parts of the generation that lost a worker.
    cores : CoreChanges
        Gives pinned executors their cores again.
    started : callable
        Called with the record of a job that runs again.
    """

    def __init__(
        self,
        starts: JobStarts,
        calls: WorkerCalls,
        ends: PartEnds,
        cores: CoreChanges,
        started: Callable[[JobRecord], None],
    ):
        self.starts = starts
        self.calls = calls
        self.ends = ends
        self.cores = cores
        self._started = started
        self._restarting: set[JobRecord] = set()
        # Losses that were noticed while a job restarted.
        self._lost_again: set[JobRecord] = set()

    @staticmethod
    def can(record: JobRecord) -> bool:
        """Return whether a job survives the loss of a home; one that starts for the first time does not."""
        started = record.live and record.status is not Status.STARTING
        return started and record.checkpoints is not None and record.submitted is not None

    @classmethod
    def forgives(cls, record: JobRecord) -> bool:
        """Return whether a job restarts although two workers died with the same rows, perhaps of another cause.

        Rows that kill their process do so again, before there is a new checkpoint.
        """
        return cls.can(record) and record.checkpoints is not None and record.checkpoints.attempts == 0

    async def restart(
        self, record: JobRecord, error: NodeLost, lost: Collection[str] = (), *, planned: bool = False
    ) -> ElasticError | None:
        """Restart a job, several times if need be.

        Parameters
        ----------
        record : JobRecord
            The job; see `can`.
        error : NodeLost
            Why.
        lost : collection of str
            Addresses of workers that are not to host it.
        planned : bool
            Whether nothing is lost: the restart does not count as an attempt, and what can stay where it is does.

        Returns
        -------
        ElasticError or None
            Why the job cannot go on; None if it runs or has ended.
        """
        if record in self._restarting:
            if not record.halted:
                # Otherwise the workers are chosen later.
                self._lost_again.add(record)
            return None
        self._restarting.add(record)
        try:
            failure = await self._restart(record, error, lost, planned)
        finally:
            self._restarting.discard(record)
            self._lost_again.discard(record)
        if failure is None:
            # The loss of a worker meanwhile begins another restart.
            await self.cores.restore_pinned(record)
        return failure

    async def _restart(
        self, record: JobRecord, error: ElasticError | Relayed, lost: Collection[str], planned: bool
    ) -> ElasticError | None:
        state = record.checkpoints
        assert state is not None, "only jobs with checkpoints are restarted"
        attempts = record.spec.options.restart_attempts
        while record.live:
            if not planned and state.attempts >= attempts:
                return _given_up(record, error)
            left = tuple(sorted({*lost, *self._absent(record)}))
            attempt = JobRestart(time.time(), None, state.newest, text_of(error), left, planned)
            level = logging.INFO if planned else logging.WARNING
            logger.log(level, "job %r restarts from checkpoint %d: %s", record.name, state.newest, text_of(error))
            record.change(JobEvent.RESTART)
            await self._end_generation(record, lost)
            await record.ended(_wait(state.attempts))
            if record.ended_at is not None:
                return None
            state.attempts += not planned
            state.restarts += 1
            state.restarted.append(attempt)
            self._lost_again.discard(record)
            try:
                await self._start(record, lost, planned)
            except CheckpointSuperseded as failure:
                return NodeLost(f"job {record.name!r} is not restarted here: {failure}")
            except (ElasticError, Relayed) as failure:
                error = failure
                record.halt()
                if _is_damage(error):
                    return await self._damaged(record, error)
                continue
            finally:
                # A worker that hung may answer again; the calls that find the workers leave out those that do not.
                lost, planned = (), False
            state.restarted[-1] = replace(attempt, seconds=time.time() - attempt.began)
            absent = self._absent(record)
            if record in self._lost_again or absent:
                text = f"job {record.name!r} has lost another worker while it restarted"
                error = NodeLost(f"{text}: {', '.join(absent)}" if absent else text)
                continue
            return None
        return None

    @staticmethod
    async def _damaged(record: JobRecord, error: ElasticError | Relayed) -> CheckpointError:
        """Return why a job cannot go on whose newest checkpoint is damaged.

        An earlier checkpoint is the user's decision: rows that sinks have committed since would be shown again.
        """
        state = record.checkpoints
        assert state is not None, "only jobs with checkpoints are restarted"
        shown = shown_url(state.url)
        try:
            catalog = Catalog(await in_thread(CheckpointFolder, state.url))
            earlier = [number for number in await in_thread(catalog.numbers) if number < state.newest]
        except ElasticError as failure:
            logger.warning("job %r: the checkpoints in %s cannot be listed: %s", record.name, shown, failure)
            earlier = []
        given = f"dask_elastic.resume({shown!r}, client, number={earlier[0]})" if earlier else ""
        advice = (
            f"Continue from the one before with {given}: sinks show the rows since then again."
            if earlier
            else "There is no earlier one: submit the job again with another folder."
        )
        return CheckpointError(
            f"job {record.name!r} cannot restart, because checkpoint {state.newest} is damaged: {text_of(error)} "
            f"{advice}"
        )

    def _absent(self, record: JobRecord) -> list[str]:
        return [address for address in record.addresses if not self.calls.present(address)]

    async def _end_generation(self, record: JobRecord, lost: Collection[str]) -> None:
        """End the parts of the generation that lost a home; a manifest that is being written is awaited."""
        state = record.checkpoints
        assert state is not None, "only jobs with checkpoints are restarted"
        record.halt()
        async with state.publishing:
            if (progress := state.progress) is not None:
                gone = CheckpointDescription(progress.number, progress.started, 0.0, error="the job was restarted")
                state.completed(gone)
                state.settle(dump_error(NodeLost("the job is restarted")))
        await self.ends.before_restart(record, lost)

    async def _await_worker(self, record: JobRecord, lost: Collection[str]) -> None:
        """Wait for a worker: without one, all attempts would fail before lost workers are replaced."""
        deadline = time.monotonic() + WORKER_SECONDS
        while time.monotonic() < deadline and not set(self.starts.workers.usable()).difference(lost):
            await record.ended(LOOK_SECONDS)
            if not record.live:
                return

    async def _start(self, record: JobRecord, lost: Collection[str], planned: bool) -> None:
        assert record.submitted is not None, "a job keeps its call until it ends"
        await self._await_worker(record, lost)
        candidates = await self.starts.candidates(record.submitted.version)
        nodes = [address for address in candidates.nodes if address not in lost]
        if not nodes:
            raise NodeLost(f"no worker is left for job {record.name!r}")
        if (generation := await self._reserved(record)) is None:
            return
        await self.starts.restart(record, nodes, generation, stays=planned)
        if record.live:
            self._started(record)

    async def _reserved(self, record: JobRecord) -> int | None:
        """Reserve the next generation, and choose the checkpoint that it begins from; None if the job has ended."""
        state, starts = record.checkpoints, self.starts
        assert state is not None, "only jobs with checkpoints are restarted"
        # The end of the job waits for what is written, and nothing is written after it.
        async with state.reserving:
            if record.submitted is None:
                return None
            generation = await in_thread(
                next_generation, state.url, starts.newest_generation, state.reserved, state.owner
            )
            state.reserved = generation
            starts.newest_generation = max(starts.newest_generation, generation)
            if record.live:
                state.newest = await in_thread(next_start, state.url, generation, state.newest)
            if record.ended_at is not None:
                # What the end has noted may be the generation before.
                await self.ends.write_end(record)
                return None
            return generation


def _given_up(record: JobRecord, error: ElasticError | Relayed) -> NodeLost:
    state = record.checkpoints
    assert state is not None, "only jobs with checkpoints are restarted"
    return NodeLost(
        f"job {record.name!r} was restarted {state.attempts} times from checkpoint {state.newest} without a new "
        f"checkpoint: {text_of(error)} Restart it from there with dask_elastic.resume({shown_url(state.url)!r}, "
        "client)."
    )


def _is_damage(error: ElasticError | Relayed) -> bool:
    """Return whether an error says that a file of a checkpoint is damaged, which does not pass."""
    if not isinstance(error, Relayed):
        return isinstance(error, CheckpointCorrupt)
    try:
        return isinstance(load_error(error.data), CheckpointCorrupt)
    except Exception:  # loading an object of user code may raise any exception
        return False


def _wait(attempts: int) -> float:
    return 0.0 if attempts == 0 else min(FIRST_WAIT * 2 ** (attempts - 1), LONGEST_WAIT)
