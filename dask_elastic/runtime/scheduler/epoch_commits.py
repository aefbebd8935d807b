"""The handoff on the scheduler: commits of epochs, queues that wake their readers, and acknowledgements."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dask_elastic.meters import Rate
from dask_elastic.runtime.protocol.calls import Call, HandledCall
from dask_elastic.runtime.protocol.concurrent_calls import all_of
from dask_elastic.runtime.protocol.handoff_calls import (
    AbortEpoch,
    CommitEpoch,
    CommittedEpoch,
    HandoffPlaces,
    NextEpochs,
    Seal,
    StagingPlaces,
    TakeEpochs,
    Unstage,
)
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.query_positions import QueryPositions
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.epoch import AttemptId, HandoffProgress, StagedPart
from dask_elastic.vocab.errors import ElasticError, EpochConflict, HandoffError, JobEnded, SourceReset, UnknownOperator

if TYPE_CHECKING:
    from distributed import Scheduler

RATE_SECONDS = 10.0
"""Rows come in micro-batches, so their rate is measured over several of them."""

Fail = Callable[[JobRecord, bytes], None]


class SourceCommits:
    """The epochs of one source of one generation of a job.

    Parameters
    ----------
    source : str
        The source.
    ledger : EpochLedger
        The committed epochs.
    limit : int
        How many epochs may wait at an instance.
    queues : sequence of str
        A Dask queue for each instance; a descriptor of each epoch in it wakes the reader.
    """

    def __init__(self, source: str, ledger: EpochLedger, limit: int, queues: Sequence[str]):
        self.source = source
        self.ledger = ledger
        self.limit = limit
        self.queues = tuple(queues)
        self.committing = asyncio.Lock()
        self.rate = Rate(RATE_SECONDS)
        self._taken = asyncio.Event()

    def taken(self) -> None:
        """Wake the commits that wait for room."""
        self._taken.set()
        self._taken = asyncio.Event()

    async def has_room(self, parts: Sequence[StagedPart], wait: float) -> bool:
        """Return whether an epoch may be committed, after waiting up to `wait` seconds for room."""
        deadline = asyncio.get_running_loop().time() + wait
        while self.ledger.backlog(parts) >= self.limit and not self.ledger.closed:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._taken.wait(), left)
        return True


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
        self._commits: dict[tuple[str, int, str], SourceCommits] = {}

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
        """Return where to stage rows for a source; without a name, for the only source that takes epochs."""
        record = self._live(call.job)
        source = call.source or self._only_source(record)
        self._commits_of(record, source)
        places = tuple(record.nodes[node] for node in record.spec.homes[source])
        return StagingPlaces(record.spec.generation, source, places)

    async def commit_epoch(self, call: CommitEpoch) -> bool:
        """Commit an epoch: when this returns True, its rows are the job's.

        Returns
        -------
        bool
            False when too many epochs wait already; the writer calls again.

        Raises
        ------
        EpochConflict
            If it was committed before with other rows; the job fails, because one of the two is wrong.
        HandoffError
            If the job accepts no more epochs, or a staged part is lost.
        SourceReset
            If epochs before it are missing, or its query repeats the input of another one; the job keeps running.
        """
        record = self._of_generation(call.job, call.generation)
        commits = self._commits_of(record, call.source)
        async with commits.committing:
            if await self._known(record, commits, call):
                await self._unstage(record, commits, call.query, call.epoch)
                return True
            if not await commits.has_room(call.parts, call.wait):
                return False
            try:
                await self._seal(record, commits, call)
                self._check_open(record)
                committed = commits.ledger.commit(call.query, call.epoch, call.parts, call.origin)
                commits.rate.add(committed.rows, time.monotonic())
            except BaseException:
                await self._unstage(record, commits, call.query, call.epoch)
                raise
            for instance, queue in enumerate(commits.queues):
                if committed.of_instance(instance):
                    self._announce(queue, [call.query, call.epoch, committed.number, committed.rows])
        return True

    async def abort_epoch(self, call: AbortEpoch) -> None:
        """Drop the rows that were staged for an epoch, unless it is committed."""
        record = self._of_generation(call.job, call.generation)
        commits = self._commits_of(record, call.source)
        async with commits.committing:
            await self._unstage(record, commits, call.query, call.epoch)

    async def _known(self, record: JobRecord, commits: SourceCommits, call: CommitEpoch) -> bool:
        try:
            return commits.ledger.known(call.query, call.epoch, call.parts, call.origin)
        except SourceReset:
            await self._unstage(record, commits, call.query, call.epoch)
            raise
        except EpochConflict as error:
            self.fail(record, dump_error(error))
            raise

    async def _seal(self, record: JobRecord, commits: SourceCommits, call: CommitEpoch) -> None:
        chosen: list[list[AttemptId]] = [[] for _ in commits.queues]
        for part in call.parts:
            chosen[part.instance].append(part.attempt)
        await self._call_instances(
            record,
            commits,
            lambda instance: Seal(
                *record.generation_id, commits.source, instance, call.query, call.epoch, tuple(chosen[instance])
            ),
        )

    async def _unstage(self, record: JobRecord, commits: SourceCommits, query: str, epoch: int) -> None:
        keep = tuple(commits.ledger.chosen(query, epoch))
        with contextlib.suppress(ElasticError, Relayed):  # a worker that has ended the job keeps nothing of it
            await self._call_instances(
                record,
                commits,
                lambda instance: Unstage(*record.generation_id, commits.source, instance, query, epoch, keep),
            )

    async def _call_instances(
        self, record: JobRecord, commits: SourceCommits, call_for: Callable[[int], Call[None]]
    ) -> None:
        """Call the worker of each instance of a source."""
        homes = record.spec.homes[commits.source]
        calls = (self.calls.one(record.nodes[node], call_for(instance)) for instance, node in enumerate(homes))
        await all_of(calls)

    # readers

    async def next_epochs(self, call: NextEpochs) -> tuple[CommittedEpoch, ...]:
        """Give an instance the epochs behind a number; waits up to `call.wait` seconds for one.

        The queue only wakes the reader: a reader that takes a descriptor from it and dies loses no epoch.
        """
        commits = self._commits.get((call.job, call.generation, call.source))
        if commits is None or not self.jobs.record(call.job).live:
            # The job has ended, and its worker is about to end the reader.
            await asyncio.sleep(call.wait)
            return ()
        instance, ledger = call.instance, commits.ledger
        if call.wait and not ledger.pending(instance, call.after):
            with contextlib.suppress(asyncio.TimeoutError):
                await self._queues.get(name=commits.queues[instance], timeout=call.wait)
        records = ledger.pending(instance, call.after)
        await self._queues.get(name=commits.queues[instance], batch=True)
        return tuple(CommittedEpoch(record.number, record.of_instance(instance)) for record in records)

    async def take_epochs(self, call: TakeEpochs) -> None:
        """Note that an instance has read every epoch up to a number."""
        commits = self._commits.get((call.job, call.generation, call.source))
        if commits is not None:
            commits.ledger.acknowledge(call.instance, call.through)
            commits.taken()

    def progress(self, record: JobRecord) -> list[HandoffProgress]:
        """Return how far the handoff to each source of a job is that takes epochs."""
        return [self._progress(record, each.name, each.epochs) for each in record.spec.summaries if each.epochs]

    def _progress(self, record: JobRecord, source: str, limit: int) -> HandoffProgress:
        commits = self._commits.get((*record.generation_id, source))
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

    def close(self, record: JobRecord, source: str) -> None:
        """Commit no more epochs for a source."""
        commits = self._commits_of(record, source)
        commits.ledger.close()
        commits.taken()

    def close_all(self, record: JobRecord) -> None:
        """Commit no more epochs for any source of a job."""
        for summary in record.spec.summaries:
            if summary.epochs:
                self.close(record, summary.name)

    def forget(self, job: str) -> None:
        """Drop the ledgers and queues of a job."""
        for key in [key for key in self._commits if key[0] == job]:
            for queue in self._commits.pop(key).queues:
                self._queues.release(name=queue, client=None)

    # which source

    @property
    def _queues(self) -> Any:
        return self.scheduler.extensions["queues"]

    def _announce(self, queue: str, descriptor: list[Any]) -> None:
        found = self._queues.queues[queue]
        if not found.full():
            found.put_nowait({"type": "msgpack", "value": descriptor})

    def _commits_of(self, record: JobRecord, source: str) -> SourceCommits:
        """Return the commits of a source that takes epochs."""
        key = (*record.generation_id, source)
        if key not in self._commits:
            takers = {summary.name: summary for summary in record.spec.summaries if summary.epochs}
            if source not in takers:
                raise UnknownOperator(
                    f"job {record.name!r} has no source {source!r} that takes epochs: choose from {[*takers]}"
                )
            limit = takers[source].epochs
            instances = len(record.spec.homes[source])
            queues = [f"{record.name}/{source}[{instance}]" for instance in range(instances)]
            for queue in queues:
                self._queues.create(name=queue, client=None, maxsize=limit)
            place = f"job {record.name!r}, source {source!r}"
            ledger = EpochLedger(instances, positions=QueryPositions(place, takers[source].accepts_resets))
            self._commits[key] = SourceCommits(source, ledger, limit, queues)
        return self._commits[key]

    def _only_source(self, record: JobRecord) -> str:
        takers = [summary.name for summary in record.spec.summaries if summary.epochs]
        if len(takers) != 1:
            raise UnknownOperator(
                f"job {record.name!r} has the sources {takers} that take epochs: name one of them as source"
            )
        return takers[0]

    def _of_generation(self, job: str, generation: int) -> JobRecord:
        record = self._live(job)
        if record.spec.generation != generation:
            raise HandoffError(
                f"job {job!r} was submitted again: the rows staged for its generation {generation} are lost."
            )
        return record

    def _live(self, job: str) -> JobRecord:
        record = self.jobs.record(job)
        if record.error is not None:
            raise Relayed(record.error)
        if not record.live:
            raise JobEnded(f"job {job!r} is {record.status.value}: it takes no more rows. Submit it again.")
        return record

    def _check_open(self, record: JobRecord) -> None:
        self._live(record.name)
        if record.status is not Status.RUNNING:
            raise HandoffError(f"job {record.name!r} is {record.status.value}: it takes no more rows.")
