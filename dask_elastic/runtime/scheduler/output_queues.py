"""Output queues on the scheduler: the items that sinks offer, in order, until a reader has taken them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from collections import OrderedDict, deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_elastic.runtime.protocol.background_tasks import BackgroundTasks
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.protocol.queue_calls import (
    DropRows,
    NextRows,
    OfferRows,
    OpenQueue,
    QueueItem,
    QueueItems,
    TakeRows,
)
from dask_elastic.runtime.protocol.remote_errors import Relayed
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.queue_copies import QueueCopies
from dask_elastic.runtime.scheduler.worker_calls import NotHosting, WorkerCalls
from dask_elastic.runtime.transport.queue_rows import QueueRows
from dask_elastic.vocab.errors import ElasticError, SinkError, SourceError

if TYPE_CHECKING:
    from distributed import Scheduler

logger = logging.getLogger("dask_elastic.scheduler")

FORGOTTEN = 1_000
"""Queues of forgotten jobs that are remembered: their readers ask for more within a second or so."""

RETRY_SECONDS = 1.0
"""Seconds between two calls to a worker that was not reached, to drop rows that were read."""


_FORGOTTEN_JOB = "the job was forgotten before they were read. Forget a job when the readers of its queues have ended."
_TAKEN = (
    "job {!r} opened the queue before they were read. Give that job another queue, or submit it when the readers of "
    "this one have ended."
)


class OutputQueue:
    """The ledger of one queue: the items that no reader has taken.

    Parameters
    ----------
    writer : JobGeneration
        The job whose sinks write.
    run : str
        The run of the job; it stays the same when the job is restarted.
    limit : int
        How many items may wait.

    Attributes
    ----------
    copies : QueueCopies or None
        The Dask queue with copies of the items.
    uid : str
        Identifies this ledger: the next generation of the writer counts its items anew, in a ledger of its own.
    """

    def __init__(self, writer: JobGeneration, run: str, limit: int):
        self.copies: QueueCopies | None = None
        self.uid = uuid.uuid4().hex
        self.writer = writer
        self.run = run
        self.limit = limit
        self.items: deque[QueueItem] = deque()
        self.taken = asyncio.Event()
        self.added = asyncio.Event()
        self._count = 0

    def add(self, address: str, item: int) -> QueueItem:
        """Append an item that a worker holds."""
        self._count += 1
        self.items.append(QueueItem(self._count, address, item))
        self.added.set()
        self.added = asyncio.Event()
        return self.items[-1]

    def behind(self, number: int) -> tuple[QueueItem, ...]:
        """Return the items behind a number."""
        return tuple(item for item in self.items if item.number > number)

    @property
    def is_full(self) -> bool:
        """Whether no further item may wait."""
        return len(self.items) >= self.limit or (self.copies is not None and self.copies.lacks_room)

    def remove(self, number: int) -> list[QueueItem]:
        """Remove one item, and return it."""
        removed = [item for item in self.items if item.number == number]
        self.items = deque(item for item in self.items if item.number != number)
        self._wake()
        return removed

    def _wake(self) -> None:
        self.taken.set()
        self.taken = asyncio.Event()

    def acknowledge(self, through: int) -> list[QueueItem]:
        """Remove the items up to a number, and return them."""
        removed = []
        while self.items and self.items[0].number <= through:
            removed.append(self.items.popleft())
        self._wake()
        return removed


class ForgottenQueue(NamedTuple):
    """What readers get to know of a queue whose job was forgotten, or that another job has taken since.

    Parameters
    ----------
    left : tuple of int
        The numbers of the items that no reader had acknowledged.
    error : bytes or None
        The error with which the job had failed.
    why : str
        What happened to the items, and what to do about it.
    """

    left: tuple[int, ...]
    error: bytes | None
    why: str


class OutputQueues:
    """Accepts items from sinks and gives them to readers.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Has the Dask queues that wake readers.
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the workers.
    """

    def __init__(self, scheduler: Scheduler, jobs: JobTable, calls: WorkerCalls):
        self.scheduler = scheduler
        self.jobs = jobs
        self.calls = calls
        self._ledgers: dict[str, OutputQueue] = {}
        # By identifier of a ledger whose job was forgotten.
        self._forgotten: OrderedDict[str, ForgottenQueue] = OrderedDict()
        self._freeing = BackgroundTasks(logger)

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [
            OpenQueue.handled_by(self.open_queue),
            OfferRows.handled_by(self.offer_rows),
            NextRows.handled_by(self.next_rows),
            TakeRows.handled_by(self.take_rows),
        ]

    async def open_queue(self, call: OpenQueue) -> None:
        """Note that a job writes a queue, so that its readers learn of the job's end."""
        self._ledger(JobGeneration(call.job, call.generation), call.queue, call.limit, call.by_get)

    async def offer_rows(self, call: OfferRows) -> bool:
        """Append rows that a worker holds; returns False when the queue stays full for `call.wait` seconds."""
        ledger = self._ledger(JobGeneration(call.job, call.generation), call.queue, call.limit)
        if ledger.is_full:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ledger.taken.wait(), call.wait)
        if ledger.is_full:
            return False
        added = ledger.add(call.address, call.item)
        if ledger.copies is not None:
            ledger.copies.offer(added.number, call.rows or _handle(added, call))
        return True

    async def next_rows(self, call: NextRows) -> QueueItems:
        """Return the items behind a number, and whether no more will come.

        An item stays in the ledger until the reader has acknowledged it; what clients get from the Dask queue are
        copies.

        Raises
        ------
        SourceError
            If the job that wrote the queue was forgotten with items that no reader had taken.
        Relayed
            The error of the job that wrote the queue, if it has failed.
        """
        ledger = self._ledgers.get(call.queue)
        if (forgotten := self._forgotten.get(call.ledger)) is not None:
            return _end_of(call.queue, forgotten, call.after)
        if ledger is None:
            await asyncio.sleep(call.wait)
            return QueueItems()
        record = self.jobs.get(ledger.writer.job)
        # A writer that restarts continues in another ledger.
        ended = record is None or record.spec.run != ledger.run or not record.live
        after = call.after if call.ledger == ledger.uid else 0
        if not ended and not ledger.behind(after):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ledger.added.wait(), call.wait)
        items = ledger.behind(after)
        if ended and not items and record is not None and record.error is not None:
            raise Relayed(record.error)
        return QueueItems(items, ended, *ledger.writer, ledger.uid)

    async def take_rows(self, call: TakeRows) -> None:
        """Remove the items up to a number, and have the workers free their rows."""
        ledger = self._ledgers.get(call.queue)
        if ledger is None or ledger.uid != call.ledger:
            return
        taken = ledger.acknowledge(call.through)
        if ledger.copies is not None:
            ledger.copies.drop(call.through)
        await self._free(ledger.writer, taken)

    async def _free(self, writer: JobGeneration, taken: list[QueueItem]) -> None:
        """Have the workers free the rows of items that were taken."""
        by_worker: dict[str, list[int]] = {}
        for item in taken:
            by_worker.setdefault(item.address, []).append(item.item)
        for address, items in by_worker.items():
            call = DropRows(*writer, tuple(items))
            if not await self._drop(address, call):
                self._keep(call.job, self._drop_later(address, call))

    async def _drop(self, address: str, call: DropRows) -> bool:
        """Have a worker drop rows; returns whether it holds them no more."""
        try:
            await self.calls.one(address, call)
        except (Relayed, NotHosting):
            return True  # it no longer hosts that job
        except ElasticError as error:
            logger.debug("%s was not asked to drop rows that were read: %s", address, error)
            # One that has left holds nothing any more.
            return not self.calls.present(address)
        return True

    async def _drop_later(self, address: str, call: DropRows) -> None:
        """Try again: checkpoints and the end of the job wait until all rows of a queue are read."""
        record = self.jobs.get(call.job)
        while record is not None and record.runs(call.generation) and self.jobs.get(call.job) is record:
            if await self._drop(address, call):
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _keep(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        self._freeing.keep(asyncio.ensure_future(work), f"job {job!r}: freeing rows that were read from a queue")

    def _got(self, ledger: OutputQueue, number: int) -> None:
        """Take an item whose copy a client has got; called while the client gets it."""
        self._keep(ledger.writer.job, self._free(ledger.writer, ledger.remove(number)))

    def forget(self, job: str, error: bytes | None = None) -> None:
        """Drop the queues of a job, which has perhaps failed with an error."""
        for queue in [queue for queue, ledger in self._ledgers.items() if ledger.writer.job == job]:
            ledger = self._ledgers.pop(queue)
            self._remember(ledger, error, _FORGOTTEN_JOB)
            self._queues.release(name=queue, client=None)

    def _remember(self, ledger: OutputQueue, error: bytes | None, why: str) -> None:
        """Note what the readers of a ledger that is dropped get to know."""
        self._forgotten[ledger.uid] = ForgottenQueue(tuple(item.number for item in ledger.items), error, why)
        if len(self._forgotten) > FORGOTTEN:
            self._forgotten.popitem(last=False)

    def _replace(self, ledger: OutputQueue, queue: str, job: str) -> None:
        """Drop the ledger of an ended job whose queue another one writes now; its readers do not go on with that."""
        before = self.jobs.get(ledger.writer.job)
        same = before is not None and before.spec.run == ledger.run
        self._remember(ledger, before.error if same and before is not None else None, _TAKEN.format(job))
        if ledger.items:
            logger.warning(
                "queue %r: %d batches of job %r are lost, because job %r has opened the queue before they were read",
                queue, len(ledger.items), ledger.writer.job, job,
            )  # fmt: skip
            self._keep(ledger.writer.job, self._free(ledger.writer, list(ledger.items)))

    @property
    def _queues(self) -> Any:
        return self.scheduler.extensions["queues"]

    def _ledger(self, writer: JobGeneration, queue: str, limit: int, by_get: bool = False) -> OutputQueue:
        ledger = self._ledgers.get(queue)
        if ledger is not None and ledger.writer != writer:
            owner = self.jobs.get(ledger.writer.job)
            # One that restarts writes it again.
            writes = owner is not None and (owner.generation_id == ledger.writer or writer.job != ledger.writer.job)
            if owner is not None and owner.live and owner.spec.run == ledger.run and writes:
                raise SinkError(
                    f"queue {queue!r} is written by job {ledger.writer.job!r}: give each job a queue of its own."
                )
            if self.jobs.record(writer.job).spec.run != ledger.run:
                self._replace(ledger, queue, writer.job)
            ledger = None
        if ledger is None:
            record = self.jobs.record(writer.job)
            if queue not in self._ledgers:
                self._queues.create(name=queue, client=None, maxsize=limit)
            ledger = self._ledgers[queue] = OutputQueue(writer, record.spec.run, limit)
            got = functools.partial(self._got, ledger) if by_get else None
            ledger.copies = QueueCopies(self._queues.queues[queue], ledger.uid, got)
        return ledger


def _end_of(queue: str, forgotten: ForgottenQueue, after: int) -> QueueItems:
    """Return the end of a queue whose job was forgotten; raise if its reader lacks rows behind a number."""
    if forgotten.error is not None:
        raise Relayed(forgotten.error)
    if lost := sum(number > after for number in forgotten.left):
        raise SourceError(f"queue {queue!r}: {lost} batches of the job that wrote it are lost, because {forgotten.why}")
    return QueueItems(ended=True)


def _handle(item: QueueItem, call: OfferRows) -> QueueRows:
    place = (call.job, call.generation, item.address, item.item)
    return QueueRows(call.queue, item.number, call.count, call.nbytes, *place)
