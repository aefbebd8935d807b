"""The handoff on the scheduler: commits of epochs, queues with copies of them, and acknowledgements."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.protocol.calls import A, Call, HandledCall
from dask_elastic.runtime.protocol.concurrent_calls import all_of
from dask_elastic.runtime.protocol.handoff_calls import (
    AbortEpoch,
    CommitEpoch,
    CommittedEpoch,
    EpochsToRead,
    HandoffPlaces,
    NextEpochs,
    Seal,
    StagingPlaces,
    TakeEpochs,
    Unstage,
)
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error
from dask_elastic.runtime.scheduler.checkpoint_folders import check_owned, in_thread
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import RESTART_POLL, JobTable
from dask_elastic.runtime.scheduler.query_positions import QueryPositions
from dask_elastic.runtime.scheduler.queue_copies import EpochCopies
from dask_elastic.runtime.scheduler.source_commits import SourceCommits
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.epoch import AttemptId, EpochRecord, HandoffProgress
from dask_elastic.vocab.errors import BatchMismatch, ElasticError, HandoffError, JobEnded, SourceReset, UnknownOperator

if TYPE_CHECKING:
    from distributed import Scheduler

Fail = Callable[[JobRecord, bytes], None]


class EpochCommits:
    """Commits the epochs of writers, and gives them to the instances of sources.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Has the queues.
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the workers.
    fail : callable
        Fails a job with an error.
    """

    def __init__(self, scheduler: Scheduler, jobs: JobTable, calls: WorkerCalls, fail: Fail):
        self.scheduler = scheduler
        self.jobs = jobs
        self.calls = calls
        self.fail = fail
        self._commits: dict[tuple[str, str], SourceCommits] = {}

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [
            HandoffPlaces.handled_by(self.handoff_places),
            CommitEpoch.handled_by(self.commit_epoch),
            AbortEpoch.handled_by(self.abort_epoch),
            NextEpochs.handled_by(self.next_epochs),
            TakeEpochs.handled_by(self.take_epochs),
        ]

    # writers

    async def handoff_places(self, call: HandoffPlaces) -> StagingPlaces:
        """Return where to stage rows for a source; without a name, for the only source that takes epochs.

        Waits while the job restarts.
        """
        self._live(call.job)
        await self.jobs.settled(call.job)
        record = self._live(call.job)
        source = call.source or self._only_source(record)
        commits = self._commits_of(record, source)
        places = tuple(record.nodes[node] for node in record.spec.homes[source])
        known = bool(call.query) and commits.ledger.is_committed(call.query, call.epoch)
        return StagingPlaces(record.spec.generation, source, places, record.spec.run, commits.spool is not None, known)

    async def commit_epoch(self, call: CommitEpoch) -> bool:
        """Commit an epoch: when this returns True, its rows are the job's.

        Returns
        -------
        bool
            False when too many epochs wait already; the writer calls again.

        Raises
        ------
        BatchMismatch
            If it was committed before with other rows; the job fails, because one of the two is wrong.
        CheckpointError
            If its record cannot be written to durable storage.
        HandoffError
            If the job accepts no more epochs, or a staged part is lost.
        SourceReset
            If epochs before it are missing, or its query repeats the input of another one; the job keeps running.
        """
        record, commits = self._of_run(call.job, call.generation, call.run, call.source)
        async with commits.committing:
            held = _held(record)
            if not held:
                await _adopt(commits)
            if await self._known(record, commits, call):
                await self._unstage(record, commits, call.query, call.epoch)
                return True
            if not await commits.has_room(call.parts, call.wait):
                return False
            self._of_run(call.job, call.generation, call.run, call.source)
            if held or _held(record):
                # The savepoint would lack the epoch. The writer calls again, also if the job has ended by then. If the
                # stop has failed meanwhile, storage may still have the next record, which was not looked for.
                await record.ended(RESTART_POLL)
                return False
            await self._commit(record, commits, call)
        return True

    async def _commit(self, record: JobRecord, commits: SourceCommits, call: CommitEpoch) -> None:
        try:
            small = await self._seal(record, commits, call)
            self._check_open(record)
            _announce(commits, await commits.commit(call), small)
        except BaseException:
            await self._unstage(record, commits, call.query, call.epoch)
            raise

    async def abort_epoch(self, call: AbortEpoch) -> None:
        """Drop the rows that were staged for an epoch, unless it is committed."""
        record, commits = self._of_run(call.job, call.generation, call.run, call.source)
        async with commits.committing:
            await self._unstage(record, commits, call.query, call.epoch)

    async def _known(self, record: JobRecord, commits: SourceCommits, call: CommitEpoch) -> bool:
        try:
            return commits.ledger.known(call.query, call.epoch, call.parts, call.origin)
        except SourceReset:
            await self._unstage(record, commits, call.query, call.epoch)
            raise
        except BatchMismatch as error:
            self.fail(record, dump_error(error))
            raise

    async def _seal(self, record: JobRecord, commits: SourceCommits, call: CommitEpoch) -> Sequence[bytes | None]:
        """Keep the chosen attempts at their workers; return small copies of their rows, by instance."""
        chosen: list[list[AttemptId]] = [[] for _ in commits.copies]
        for part in call.parts:
            chosen[part.instance].append(part.attempt)
        # Spooled rows need no worker: a lost one's, or those of an earlier generation, are read from storage.
        ignored = () if commits.spool is None else (ElasticError, Relayed)
        with contextlib.suppress(*ignored):
            return await self._call_instances(
                record,
                commits,
                lambda instance: Seal(
                    *record.generation_id, commits.source, instance, call.query, call.epoch, tuple(chosen[instance])
                ),
            )
        return ()

    async def _unstage(self, record: JobRecord, commits: SourceCommits, query: str, epoch: int) -> None:
        keep = tuple(commits.ledger.chosen(query, epoch))
        with contextlib.suppress(ElasticError, Relayed):  # a worker that has ended the job keeps nothing of it
            await self._call_instances(
                record,
                commits,
                lambda instance: Unstage(*record.generation_id, commits.source, instance, query, epoch, keep),
            )

    async def _call_instances(
        self, record: JobRecord, commits: SourceCommits, call_for: Callable[[int], Call[A]]
    ) -> list[A]:
        """Call the worker of each instance of a source, and return the answers."""
        homes = record.spec.homes[commits.source]
        calls = (self.calls.one(record.nodes[node], call_for(instance)) for instance, node in enumerate(homes))
        return await all_of(calls)

    # readers

    async def next_epochs(self, call: NextEpochs) -> EpochsToRead:
        """Give an instance the epochs behind a number; waits up to `call.wait` seconds for one.

        An epoch stays in the ledger until the instance has read it; what clients get from the Dask queue are copies.
        """
        commits = self._read_by(call.job, call.generation, call.source)
        if commits is None:
            # The job has ended or restarts, and its worker is about to end the reader.
            await asyncio.sleep(call.wait)
            return EpochsToRead(())
        instance, ledger = call.instance, commits.ledger
        if call.wait and not commits.closed and not ledger.pending(instance, call.after):
            await commits.copies[instance].changed(call.wait)
        if ledger.closed and not call.wait:
            # The instance ends if there is nothing more. What is being committed is not sent again.
            await commits.settled()
        # A drain is not the end of the input: it reaches the reader at its worker.
        closed = commits.closed and not self.jobs.record(call.job).draining
        records = ledger.pending(instance, call.after)
        epochs = tuple(CommittedEpoch(record.number, record.of_instance(instance)) for record in records)
        return EpochsToRead(epochs, closed)

    async def take_epochs(self, call: TakeEpochs) -> None:
        """Note that an instance has read every epoch up to a number, or begins behind it."""
        commits = self._read_by(call.job, call.generation, call.source)
        if commits is None:
            return
        if call.begins:
            commits.ledger.rewind(call.instance, call.through)
            commits.copies[call.instance].rewound(call.through)
        else:
            commits.ledger.acknowledge(call.instance, call.through)
            commits.copies[call.instance].taken(call.through)
        commits.taken()

    def _read_by(self, job: str, generation: int, source: str) -> SourceCommits | None:
        """Return the commits that an instance of a generation reads; None if that generation has ended."""
        record = self.jobs.get(job)
        if record is None or not record.live or not record.runs(generation):
            return None
        return self._commits_of(record, source)

    def progress(self, record: JobRecord) -> list[HandoffProgress]:
        """Return how far the handoff to each source of a job is that takes epochs."""
        return [self._progress(record, each.name, each.epochs) for each in record.spec.summaries if each.epochs]

    def _progress(self, record: JobRecord, source: str, limit: int) -> HandoffProgress:
        commits = self._commits.get((record.name, source))
        kept, spilled = record.staged(source)
        if commits is None:
            return HandoffProgress(source, limit=limit, staged=kept, spilled=spilled)
        ledger = commits.ledger
        return HandoffProgress(
            source,
            None if ledger.newest is None else ledger.newest.epoch,
            ledger.epochs,
            ledger.rows,
            commits.rate.per_second(time.monotonic()),
            ledger.backlog(),
            limit,
            kept,
            spilled,
        )

    # the end

    async def end(self, record: JobRecord, source: str) -> bool:
        """Commit no more epochs for a source, whose input has ended; return whether its readers notice by themselves.

        Raises
        ------
        CheckpointError
            If that cannot be written to the folder of checkpoints, where a resumed job finds it.
        """
        commits = self._commits_of(record, source)
        while record.live and commits.spool is not None:
            async with commits.committing:
                if not _held(record):
                    # Else a job that continues from here would find an epoch which this one has not read.
                    await _adopt(commits)
                    await in_thread(commits.spool.end)
                    break
            await record.ended(RESTART_POLL)
        self.close(record, source)
        return commits.spool is not None

    def close(self, record: JobRecord, source: str) -> None:
        """Commit no more epochs for a source in this run of its job."""
        commits = self._commits_of(record, source)
        commits.ledger.close()
        commits.taken()
        for copies in commits.copies:
            copies.wake()

    def close_all(self, record: JobRecord) -> None:
        """Commit no more epochs for any source of a job."""
        for summary in record.spec.summaries:
            if summary.epochs:
                self.close(record, summary.name)

    async def settled(self, job: str) -> None:
        """Return when no commit is in progress for a job that has ended, or that commits nothing more."""
        for commits in [commits for key, commits in self._commits.items() if key[0] == job]:
            await commits.settled()

    def forget(self, job: str) -> None:
        """Drop the ledgers and queues of a job."""
        for key in [key for key in self._commits if key[0] == job]:
            self._release(key)

    def _release(self, key: tuple[str, str]) -> None:
        """Forget the commits of a source, and release its queues."""
        for instance, copies in enumerate(self._commits.pop(key).copies):
            copies.clear()
            self._queues.release(name=queue_name(*key, instance), client=None)

    # which source

    @property
    def _queues(self) -> Any:
        return self.scheduler.extensions["queues"]

    def _commits_of(self, record: JobRecord, source: str) -> SourceCommits:
        """Return the commits of a source that takes epochs, for the generation that runs."""
        key, generation = (record.name, source), record.spec.generation
        commits = self._commits.get(key)
        if commits is None or commits.generation != generation:
            spooled = None if record.checkpoints is None else record.checkpoints.ledgers.get(source)
            if commits is not None and spooled is not None and commits.ledger is spooled.ledger:
                # The job was restarted: the rows of the earlier generation are read again.
                commits.generation = generation
            else:
                commits = self._commits[key] = self._new_commits(record, source)
        return commits

    def _new_commits(self, record: JobRecord, source: str) -> SourceCommits:
        takers = {summary.name: summary for summary in record.spec.summaries if summary.epochs}
        if source not in takers:
            raise UnknownOperator(
                f"job {record.name!r} has no source {source!r} that takes epochs: choose from {[*takers]}"
            )
        limit, generation = takers[source].epochs, record.spec.generation
        state = record.checkpoints
        spooled = None if state is None else state.ledgers.get(source)
        if state is not None and spooled is not None:
            copies = self._copies(record, source, limit, spooled.ledger)
            check = functools.partial(check_owned, state)
            return SourceCommits(source, generation, spooled.ledger, spooled.spool, limit, copies, check)
        positions = QueryPositions(f"job {record.name!r}, source {source!r}", takers[source].accepts_resets)
        ledger = EpochLedger(len(record.spec.homes[source]), positions=positions)
        return SourceCommits(source, generation, ledger, None, limit, self._copies(record, source, limit, ledger))

    def _copies(self, record: JobRecord, source: str, limit: int, ledger: EpochLedger) -> list[EpochCopies]:
        """Create the Dask queue of each instance, in place of those of an earlier ledger."""
        made = []
        if (record.name, source) in self._commits:
            self._release((record.name, source))
        for instance in range(ledger.instances):
            name = queue_name(record.name, source, instance)
            self._queues.create(name=name, client=None, maxsize=limit)
            queue = self._queues.queues[name]
            made.append(EpochCopies(queue, ledger, record.name, source, record.spec.run, instance))
        return made

    def _only_source(self, record: JobRecord) -> str:
        takers = [summary.name for summary in record.spec.summaries if summary.epochs]
        if len(takers) != 1:
            raise UnknownOperator(
                f"job {record.name!r} has the sources {takers} that take epochs: name one of them as source"
            )
        return takers[0]

    def _of_run(self, job: str, generation: int, run: str, source: str) -> tuple[JobRecord, SourceCommits]:
        """Return a job and the commits of a source, for which rows were staged."""
        record = self._live(job)
        commits = self._commits_of(record, source)
        same = record.spec.run == run if commits.spool is not None else record.spec.generation == generation
        if not same:
            raise HandoffError(
                f"job {job!r} was submitted again: the rows staged for its generation {generation} are lost."
            )
        return record, commits

    def _live(self, job: str) -> JobRecord:
        record = self.jobs.record(job)
        if record.error is not None:
            raise Relayed(record.error)
        if not record.live:
            raise JobEnded(f"job {job!r} is {record.status.value}: it takes no more rows. Submit it again.")
        return record

    def _check_open(self, record: JobRecord) -> None:
        self._live(record.name)
        if record.status not in (Status.RUNNING, Status.RESTARTING):
            raise HandoffError(f"job {record.name!r} is {record.status.value}: it takes no more rows.")


def queue_name(job: str, source: str, instance: int) -> str:
    """Return the name of the Dask queue of an instance of a source."""
    return f"{job}/{source}[{instance}]"


def _announce(commits: SourceCommits, record: EpochRecord, small: Sequence[bytes | None] = ()) -> None:
    for copies, rows in itertools.zip_longest(commits.copies, small):
        copies.add(record, rows)


async def _adopt(commits: SourceCommits) -> None:
    """Add the record of an epoch that appeared after its commit had failed; `committing` is held.

    Not called while a savepoint is copied, whose list of records may be older: the writer of the epoch calls again.
    """
    if (adopted := await commits.adopt()) is not None:
        _announce(commits, adopted)


def _held(record: JobRecord) -> bool:
    return record.checkpoints is not None and record.checkpoints.held
