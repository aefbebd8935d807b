"""The scheduler's side of queues on the way out: what sinks offer, in order, until who reads has taken it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_elastic.runtime.protocol.answers import Handler, answered
from dask_elastic.runtime.protocol.remote_errors import Relayed
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.errors import ElasticError, SinkError

if TYPE_CHECKING:
    from distributed import Scheduler


class Item(NamedTuple):
    """Some rows that a worker holds for who reads the queue.

    Parameters
    ----------
    number : int
        The place in the queue, counted from 1.
    address : str
        The worker.
    item : int
        What the worker calls them.
    """

    number: int
    address: str
    item: int


class OutputQueue:
    """One queue: a ledger of what is not acknowledged, and the bell that says when there is more.

    Parameters
    ----------
    job : str
        The job whose sinks write.
    run : int
        Which run of it.
    limit : int
        How many items may wait.
    """

    def __init__(self, job: str, run: int, limit: int):
        self.job = job
        self.run = run
        self.limit = limit
        self.items: deque[Item] = deque()
        self.taken = asyncio.Event()
        self._count = 0

    def add(self, address: str, item: int) -> Item:
        """Append what a worker offers."""
        self._count += 1
        self.items.append(Item(self._count, address, item))
        return self.items[-1]

    def acknowledge(self, through: int) -> list[Item]:
        """Drop what was taken; returns it."""
        gone = []
        while self.items and self.items[0].number <= through:
            gone.append(self.items.popleft())
        self.taken.set()
        self.taken = asyncio.Event()
        return gone


class OutputQueues:
    """Takes descriptors from sinks, and gives them to who reads.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Has the Dask queues that wake who reads.
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        The way to their nodes.
    """

    def __init__(self, scheduler: Scheduler, jobs: JobTable, calls: WorkerCalls):
        self.scheduler = scheduler
        self.jobs = jobs
        self.calls = calls
        self._lines: dict[str, OutputQueue] = {}

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by the name of their operation."""
        return {
            f"elastic_{command.__name__}": answered(command)
            for command in (self.open_queue, self.offer_rows, self.next_rows, self.take_rows)
        }

    async def open_queue(self, job: str, run: int, queue: str, limit: int) -> None:
        """Note that a job writes a queue: who reads it then learns of the job's end."""
        self._line(job, run, queue, limit)

    async def offer_rows(
        self, job: str, run: int, queue: str, limit: int, address: str, item: int, wait: float
    ) -> bool:
        """Append rows that a worker holds; False when the queue stays full for `wait` seconds."""
        line = self._line(job, run, queue, limit)
        if len(line.items) >= line.limit:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(line.taken.wait(), wait)
        if len(line.items) >= line.limit:
            return False
        added = line.add(address, item)
        bell = self._queues.queues[queue]
        if not bell.full():
            bell.put_nowait({"type": "msgpack", "value": list(added)})
        return True

    async def next_rows(self, queue: str, after: int, wait: float) -> dict[str, Any]:
        """Return what is in a queue behind a number, and whether no more will come.

        The Dask queue is but the bell: what somebody took from it is still in the line.
        """
        line = self._lines.get(queue)
        if line is None:
            await asyncio.sleep(wait)
            return {"items": [], "ended": False, "job": None, "run": 0}
        record = self.jobs.get(line.job)
        ended = record is None or record.spec.generation != line.run or not record.live
        if not ended and not (line.items and line.items[-1].number > after):
            with contextlib.suppress(asyncio.TimeoutError):
                await self._queues.get(name=queue, timeout=wait)
        items = [list(item) for item in line.items if item.number > after]
        if ended and not items and record is not None and record.error is not None:
            raise Relayed(record.error)
        return {"items": items, "ended": ended, "job": line.job, "run": line.run}

    async def take_rows(self, queue: str, through: int) -> None:
        """Note that everything up to a number was taken: the workers need not hold it any longer."""
        line = self._lines.get(queue)
        by_worker: dict[str, list[int]] = {}
        for item in line.acknowledge(through) if line is not None else ():
            by_worker.setdefault(item.address, []).append(item.item)
        for address, items in by_worker.items():
            assert line is not None
            with contextlib.suppress(ElasticError, Relayed):  # a worker that has left holds nothing any more
                await self.calls.one(address, "drop_rows", job=line.job, run=line.run, items=items)

    def forget(self, job: str) -> None:
        """Drop the queues of a job."""
        for queue in [queue for queue, line in self._lines.items() if line.job == job]:
            del self._lines[queue]
            self._queues.release(name=queue, client=None)

    @property
    def _queues(self) -> Any:
        return self.scheduler.extensions["queues"]

    def _line(self, job: str, run: int, queue: str, limit: int) -> OutputQueue:
        line = self._lines.get(queue)
        if line is not None and (line.job, line.run) != (job, run):
            owner = self.jobs.get(line.job)
            if owner is not None and owner.live and owner.spec.generation == line.run:
                raise SinkError(f"queue {queue!r} is written by job {line.job!r}: give each job a queue of its own.")
            line = None
        if line is None:
            if queue not in self._lines:
                self._queues.create(name=queue, client=None, maxsize=limit)
            line = self._lines[queue] = OutputQueue(job, run, limit)
        return line
