"""The scheduler's side of a hand-off: the commit of an epoch, the queue that wakes its readers, and their receipts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dask_elastic.meters import Rate
from dask_elastic.runtime.protocol.answers import Handler, answered
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.epoch import HandoffProgress, StagedPart
from dask_elastic.vocab.errors import ElasticError, EpochConflict, HandoffError, JobFailed, UnknownOperator

if TYPE_CHECKING:
    from distributed import Scheduler

RATE_SECONDS = 10.0
"""Rows come by micro-batches, so how many come per second shows over several of them."""

Fail = Callable[[JobRecord, bytes], None]


class SourceCommits:
    """What is known of the epochs of one source of one run of a job.

    Parameters
    ----------
    ledger : EpochLedger
        What is committed; the truth.
    limit : int
        How many epochs may wait at an instance.
    queues : sequence of str
        The Dask queues, one an instance, that carry the descriptors of epochs and wake who reads.
    """

    def __init__(self, ledger: EpochLedger, limit: int, queues: Sequence[str]):
        self.ledger = ledger
        self.limit = limit
        self.queues = tuple(queues)
        self.committing = asyncio.Lock()
        self.rate = Rate(RATE_SECONDS)
        self._taken = asyncio.Event()

    def taken(self) -> None:
        """Let those look again who wait for room."""
        self._taken.set()
        self._taken = asyncio.Event()

    async def has_room(self, parts: Sequence[StagedPart], wait: float) -> bool:
        """Say whether an epoch may be committed, after waiting for up to `wait` seconds."""
        deadline = asyncio.get_running_loop().time() + wait
        while self.ledger.backlog(parts) >= self.limit and not self.ledger.closed:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._taken.wait(), left)
        return True


class EpochCommits:
    """Commits epochs, and gives them out.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Has the queues.
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        The way to their nodes.
    fail : callable
        Ends a job with an error.
    """

    def __init__(self, scheduler: Scheduler, jobs: JobTable, calls: WorkerCalls, fail: Fail):
        self.scheduler = scheduler
        self.jobs = jobs
        self.calls = calls
        self.fail = fail
        self._desks: dict[tuple[str, int, str], SourceCommits] = {}

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by the name of their operation."""
        commands: list[Handler] = [
            self.handoff_places, self.commit_epoch, self.abort_epoch, self.next_epochs, self.take_epochs,
            self.handoff_progress,
        ]  # fmt: skip
        return {f"elastic_{command.__name__}": answered(command) for command in commands}

    # writers

    async def handoff_places(self, job: str, source: str | None) -> dict[str, Any]:
        """Where to stage rows for a source; without a name, for the only one that takes epochs."""
        record = self._live(job)
        source = source or self._only_source(record)
        self._desk(record, source)
        places = [record.nodes[node] for node in record.spec.homes[source]]
        return {"run": record.spec.generation, "source": source, "places": places}

    async def commit_epoch(
        self, job: str, run: int, source: str, query: str, epoch: int, parts: list[list[Any]], wait: float
    ) -> bool:
        """Commit an epoch: when this returns True, its rows are the job's.

        Returns
        -------
        bool
            False when too many epochs wait already; ask again.

        Raises
        ------
        EpochConflict
            If it was committed before with other rows; the job fails, for one of both is wrong.
        HandoffError
            If the job takes no more, or something that was staged is gone.
        """
        record = self._of_run(job, run)
        desk = self._desk(record, source)
        staged = [StagedPart.from_message(part) for part in parts]
        async with desk.committing:
            if self._known(record, desk, query, epoch, staged):
                await self._unstage(record, source, desk, query, epoch)
                return True
            if not await desk.has_room(staged, wait):
                return False
            try:
                await self._seal(record, source, desk, query, epoch, staged)
                self._check_open(record)
                committed = desk.ledger.commit(query, epoch, staged)
                desk.rate.add(committed.rows, time.monotonic())
            except BaseException:
                await self._unstage(record, source, desk, query, epoch)
                raise
            for instance, queue in enumerate(desk.queues):
                if committed.of_instance(instance):
                    self._announce(queue, [query, epoch, committed.number, committed.rows])
        return True

    async def abort_epoch(self, job: str, run: int, source: str, query: str, epoch: int) -> None:
        """Drop what was staged for an epoch, unless it is committed."""
        record = self._of_run(job, run)
        desk = self._desk(record, source)
        async with desk.committing:
            await self._unstage(record, source, desk, query, epoch)

    def _known(self, record: JobRecord, desk: SourceCommits, query: str, epoch: int, parts: list[StagedPart]) -> bool:
        try:
            return desk.ledger.known(query, epoch, parts)
        except EpochConflict as error:
            self.fail(record, dump_error(error))
            raise

    async def _seal(
        self, record: JobRecord, source: str, desk: SourceCommits, query: str, epoch: int, parts: list[StagedPart]
    ) -> None:
        chosen: list[list[list[Any]]] = [[] for _ in desk.queues]
        for part in parts:
            chosen[part.instance].append(list(part.attempt))
        await self._tell(record, source, "seal", [{"query": query, "epoch": epoch, "chosen": each} for each in chosen])

    async def _unstage(self, record: JobRecord, source: str, desk: SourceCommits, query: str, epoch: int) -> None:
        keep = [list(attempt) for attempt in desk.ledger.chosen(query, epoch)]
        message = {"query": query, "epoch": epoch, "keep": keep}
        with contextlib.suppress(ElasticError, Relayed):  # a worker that has ended the job keeps nothing of it
            await self._tell(record, source, "unstage", [message] * len(desk.queues))

    async def _tell(self, record: JobRecord, source: str, operation: str, messages: list[dict[str, Any]]) -> None:
        run, nodes = record.spec.generation, record.nodes
        calls = (
            self.calls.one(
                nodes[node], operation, job=record.name, run=run, source=source, instance=instance, **message
            )
            for instance, (node, message) in enumerate(zip(record.spec.homes[source], messages, strict=True))
        )
        await asyncio.gather(*calls)

    # readers

    async def next_epochs(
        self, job: str, run: int, source: str, instance: int, after: int, wait: float
    ) -> list[list[Any]]:
        """Give an instance the epochs behind a number; waits to be woken when there is none.

        The queue says no more than that it is worth looking: who takes a descriptor from it and dies loses nothing.
        """
        desk = self._desks.get((job, run, source))
        if desk is None or not self.jobs.record(job).live:
            # Whoever asks is about to be told that the job has ended.
            await asyncio.sleep(wait)
            return []
        if wait and not desk.ledger.pending(instance, after):
            with contextlib.suppress(asyncio.TimeoutError):
                await self._queues.get(name=desk.queues[instance], timeout=wait)
        records = desk.ledger.pending(instance, after)
        await self._queues.get(name=desk.queues[instance], batch=True)
        return [[record.number, [part.to_message() for part in record.of_instance(instance)]] for record in records]

    async def take_epochs(self, job: str, run: int, source: str, instance: int, through: int) -> None:
        """Note that an instance has taken every epoch up to a number."""
        desk = self._desks.get((job, run, source))
        if desk is not None:
            desk.ledger.acknowledge(instance, through)
            desk.taken()

    async def handoff_progress(self, job: str) -> list[dict[str, Any]]:
        """How far each hand-off to a job is."""
        return [progress.to_message() for progress in self.progress(self.jobs.record(job))]

    def progress(self, record: JobRecord) -> list[HandoffProgress]:
        """Return how far the hand-off to each source of a job is that takes epochs."""
        return [self._progress(record, each.name, each.epochs) for each in record.spec.summaries if each.epochs]

    def _progress(self, record: JobRecord, source: str, limit: int) -> HandoffProgress:
        desk = self._desks.get((record.name, record.spec.generation, source))
        kept, spilled = record.staged(source)
        if desk is None:
            return HandoffProgress(source, limit=limit, staged=kept, spilled=spilled)
        ledger = desk.ledger
        return HandoffProgress(
            source,
            None if ledger.newest is None else ledger.newest.epoch,
            ledger.epochs,
            ledger.rows,
            desk.rate.per_second(time.monotonic()),
            ledger.backlog(),
            limit,
            kept,
            spilled,
        )

    # the end

    def close(self, record: JobRecord, source: str) -> None:
        """Commit no more epochs for a source."""
        desk = self._desk(record, source)
        desk.ledger.close()
        desk.taken()

    def close_all(self, record: JobRecord) -> None:
        """Commit no more epochs for any source of a job."""
        for summary in record.spec.summaries:
            if summary.epochs:
                self.close(record, summary.name)

    def forget(self, job: str) -> None:
        """Drop what is known of a job."""
        for key in [key for key in self._desks if key[0] == job]:
            for queue in self._desks.pop(key).queues:
                self._queues.release(name=queue, client=None)

    # which source

    @property
    def _queues(self) -> Any:
        return self.scheduler.extensions["queues"]

    def _announce(self, queue: str, descriptor: list[Any]) -> None:
        found = self._queues.queues[queue]
        if not found.full():
            found.put_nowait({"type": "msgpack", "value": descriptor})

    def _desk(self, record: JobRecord, source: str) -> SourceCommits:
        key = record.name, record.spec.generation, source
        if key not in self._desks:
            limits = {summary.name: summary.epochs for summary in record.spec.summaries}
            limit = limits.get(source, 0)
            if not limit:
                takers = [name for name, count in limits.items() if count]
                raise UnknownOperator(
                    f"job {record.name!r} has no source {source!r} that takes epochs: choose from {takers}"
                )
            instances = len(record.spec.homes[source])
            queues = [f"{record.name}/{source}[{instance}]" for instance in range(instances)]
            for queue in queues:
                self._queues.create(name=queue, client=None, maxsize=limit)
            self._desks[key] = SourceCommits(EpochLedger(instances), limit, queues)
        return self._desks[key]

    def _only_source(self, record: JobRecord) -> str:
        takers = [summary.name for summary in record.spec.summaries if summary.epochs]
        if len(takers) != 1:
            raise UnknownOperator(
                f"job {record.name!r} has the sources {takers} that take epochs: name one of them as source"
            )
        return takers[0]

    def _of_run(self, job: str, run: int) -> JobRecord:
        record = self._live(job)
        if record.spec.generation != run:
            raise HandoffError(f"job {job!r} was started anew: what was staged for its earlier run is gone.")
        return record

    def _live(self, job: str) -> JobRecord:
        record = self.jobs.record(job)
        if record.error is not None:
            raise Relayed(record.error)
        if not record.live:
            raise JobFailed(f"job {job!r} is {record.status.value}: it takes no more rows")
        return record

    def _check_open(self, record: JobRecord) -> None:
        self._live(record.name)
        if record.status is not Status.RUNNING:
            raise HandoffError(f"job {record.name!r} is {record.status.value}: it takes no more rows.")
