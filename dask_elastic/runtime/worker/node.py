"""A Dask worker as a node: it hosts parts of jobs, reports on them, and is connected to the other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import cloudpickle
from distributed.comm.core import CommClosedError
from distributed.core import Status

from dask_elastic.runtime.config.tls_policy import check_exposure
from dask_elastic.runtime.config.worker_options import worker_options
from dask_elastic.runtime.protocol.background_tasks import BackgroundTasks
from dask_elastic.runtime.protocol.calls import B, Call, is_reply, message_of, read_answer
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.concurrent_calls import all_of
from dask_elastic.runtime.protocol.job_spec import VACANT, JobSpec
from dask_elastic.runtime.protocol.queue_calls import HeldRows
from dask_elastic.runtime.protocol.reports import PartReport
from dask_elastic.runtime.transport.channels import Channels
from dask_elastic.runtime.transport.dispatch import Dispatch
from dask_elastic.runtime.transport.error_log import ErrorLog
from dask_elastic.runtime.transport.peer import Peer, address_of
from dask_elastic.runtime.transport.program_end import program_ends
from dask_elastic.runtime.transport.queue_reader import QueueReader
from dask_elastic.runtime.transport.switching import INTERVAL
from dask_elastic.runtime.worker.allocator import keep_pages
from dask_elastic.runtime.worker.control_threads import ControlThreads
from dask_elastic.runtime.worker.handlers import Handlers
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.runtime.worker.memory import Memory
from dask_elastic.runtime.worker.newest_generations import NewestGenerations
from dask_elastic.runtime.worker.node_failures import NodeFailures
from dask_elastic.runtime.worker.push_server import PushServer
from dask_elastic.runtime.worker.report import part_report
from dask_elastic.runtime.worker.report_loop import ReportLoop
from dask_elastic.runtime.worker.staging_server import StagingServer
from dask_elastic.runtime.worker.stores.state_stores import state_files
from dask_elastic.runtime.worker.task_ends import TaskEnds
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.topology.component import Component
from dask_elastic.vocab.errors import SubmitError, UnknownJob

if TYPE_CHECKING:
    from distributed import Client, Worker
    from distributed.comm import Comm

logger = logging.getLogger("dask_elastic.node")

T = TypeVar("T")

ENDING = frozenset({Status.closing, Status.closed, Status.failed})
"""Statuses of a worker that will not run again."""

TICK = 0.1
IDLE_TICK = 1.0
"""Seconds between two checks of memory and of what is due, and the same while every job is idle."""

IDLE_BALANCES = 10
"""An idle job is balanced this many times more rarely."""

JOIN_SECONDS = 5.0


class NodeRuntime:
    """Hosts parts of jobs in one Dask worker.

    Parameters
    ----------
    worker : distributed.Worker
        The worker. Its event loop runs nothing that could block.
    """

    def __init__(self, worker: Worker):
        self.worker = worker
        self.options = worker_options()
        self.memory = Memory.of(worker, self.options)
        self.state_files = state_files(Path(worker.local_directory), self.memory)
        self.job_parts: dict[str, JobPart] = {}
        self.handlers = Handlers(self)
        self.failures = NodeFailures(self)
        self.channels = Channels(
            worker, self.options, lambda *peer: Dispatch(self.job_parts, *peer), self.failures.note
        )
        self.staging = StagingServer(self)
        self.pushes = PushServer(self)
        self._generations = NewestGenerations()
        self.task_ends = TaskEnds(lambda: worker.loop.asyncio_loop)
        self._threads = ControlThreads()
        # Held while a part is measured: rates are those since the measurement before.
        self._measuring: WeakKeyDictionary[JobPart, asyncio.Lock] = WeakKeyDictionary()
        self._closed = False
        self._tick = threading.Event()
        self.reports = ReportLoop(self)
        self._background = BackgroundTasks(logger)

    @property
    def address(self) -> str:
        """The address under which the others know this node."""
        return address_of(self.worker)

    async def start(self) -> None:
        """Register the worker's handlers and start the node's own threads."""
        INTERVAL.shorten()
        keep_pages(self.memory.limit)
        self.worker.handlers.update(self._handlers())
        threading.Thread(target=self._run_ticks, name="elastic-ticks", daemon=True).start()
        self.spawn(self.reports.run(), "the reports of this worker")

    def _handlers(self) -> dict[str, Any]:
        served = (self.handlers, self.staging, self.pushes)
        return {
            "elastic_stream": self.stream,
            **{name: call for one in served for name, call in one.handlers().items()},
        }

    async def close(self) -> None:
        """End everything that runs here and remove the handlers."""
        self._closed = True
        self._tick.set()
        self.reports.close()
        for name in self._handlers():
            if self.worker.status in ENDING:
                # The scheduler and the other workers may call until they notice that this worker closes.
                self.worker.handlers[name] = _refuse
            else:
                self.worker.handlers.pop(name, None)
        for job in list(self.job_parts):
            await self.forget(job)
        self._background.cancel()
        self.pushes.close()
        self.channels.close()
        self.failures.close()
        self._threads.close()
        INTERVAL.restore()

    def spawn(self, work: Any, what: str) -> asyncio.Task[Any]:
        """Run a coroutine on the event loop until this node is closed; an error is logged, with what it does."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._background.keep(task, what)
        return task

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that may block for a moment away from the event loop."""
        return await self._threads.run(function, *arguments)

    async def in_waiting_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that may wait for a job, such as for room, away from the event loop."""
        return await self._threads.wait_for(function, *arguments)

    async def in_reading_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that reads the state of a job, and may wait for it, away from the event loop."""
        return await self._threads.read(function, *arguments)

    async def report_on(self, job_part: JobPart) -> PartReport:
        """Return a report about a job's part."""
        async with self._measuring.setdefault(job_part, asyncio.Lock()):
            return await self._threads.report(part_report, job_part)

    async def call_scheduler(self, call: Call[B]) -> B:
        """Call the scheduler; raises the error that it answers with."""
        return await _called(self.worker.scheduler, call)

    def ask(self, call: Call[B], /) -> B:
        """Call the scheduler from a thread; raises the error that it answers with."""
        return asyncio.run_coroutine_threadsafe(self.call_scheduler(call), self.worker.loop.asyncio_loop).result()

    def call_worker(self, address: str, call: Call[B], /) -> Future[B]:
        """Begin to call another worker, from a thread."""
        return asyncio.run_coroutine_threadsafe(_called(self.worker.rpc(address), call), self.worker.loop.asyncio_loop)

    def queue_reader(self, name: str, stopping: Callable[[], bool]) -> QueueReader:
        """Return a reader of an output queue of some job, for a thread."""

        def fetch(address: str, call: HeldRows) -> Payload:
            fetching = _called(self.worker.rpc(address), call)
            return asyncio.run_coroutine_threadsafe(fetching, self.worker.loop.asyncio_loop).result()

        return QueueReader(name, self.ask, fetch, stopping)

    def client(self) -> Client:
        """Connect a client to the cluster, in a thread.

        It has an event loop of its own, so that its messages do not delay those of the worker, and is not the default
        client, which tasks and user code on this worker may expect to be another one.
        """
        from distributed import Client

        return Client(
            self.worker.scheduler.address,
            security=self.worker.security,
            set_as_default=False,
            direct_to_workers=True,
            name="elastic-source",
        )

    @property
    def spill_directory(self) -> Path:
        """A new directory for what does not fit in memory."""
        return Path(self.worker.local_directory) / f"elastic-{uuid.uuid4().hex}"

    # jobs

    async def prepare(self, spec: JobSpec, components: bytes | Payload) -> None:
        """Build this node's part of a job, and connect to the job's other nodes.

        Raises
        ------
        UnknownJob
            If a later generation of the job was prepared here, or this one was forgotten, also meanwhile.
        """
        check_exposure([self.address], self.options.require_tls)
        self._generations.begin(*spec.generation_id, spec.incarnation)
        await self._connect_all(address for _, address in spec.members)

        def build() -> JobPart:
            return JobPart(self, spec, self._loaded(spec.job, components))

        async with self._generations.lock(spec.job):
            self._generations.check(*spec.generation_id, spec.incarnation)
            if spec.job in self.job_parts:
                await self.forget(spec.job)
            part = await self._threads.build(build)
            try:
                self._generations.check(*spec.generation_id, spec.incarnation)
            except UnknownJob:
                part.end()
                raise
            self.job_parts[spec.job] = part
        if part.threads.lease.needed and spec.node in spec.settled:
            # The answer to the first report is the lease, without which sinks do not open.
            self.report_soon()
        self._tick.set()

    async def check_code(self, job: str, components: bytes | Payload) -> None:
        """Load the components of a job; raises `SubmitError` if this is not possible."""
        await self._threads.build(self._loaded, job, components)

    def _loaded(self, job: str, components: bytes | Payload) -> tuple[Component, ...]:
        """Load the components of a job, with the user's code.

        Raises
        ------
        SubmitError
            If a module is missing here, or differs from that of the client.
        """
        try:
            loaded: tuple[Component, ...] = cloudpickle.loads(components)
        except (Exception, SystemExit) as error:  # a module may raise anything when it is imported, or exit
            raise SubmitError(
                f"the code of job {job!r} cannot be loaded on worker {self.address}: {type(error).__name__}: {error}. "
                "Install the modules that it uses on all workers, as the client had them when it submitted the job, or "
                "add their folder to PYTHONPATH where the workers start."
            ) from error
        return loaded

    def refuse(self, job: str, generation: int, incarnation: int | None = None) -> None:
        """Refuse to prepare a generation of a job, which was forgotten, from now on; or its incarnations up to one."""
        if incarnation is None:
            self._generations.forget(job, generation)
        else:
            self._generations.dismiss(job, generation, incarnation)

    async def members(self, job: str, change: int, nodes: Sequence[str], guests: Sequence[int]) -> None:
        """Take the nodes that the scheduler announced for a job, once those that joined are connected."""
        job_part = self.job_parts[job]
        # Only those that joined: one of the others may be lost without being noticed, and connecting to it takes long.
        await self._connect_all(address for address in nodes if address not in (*job_part.spec.nodes, VACANT))
        await self.failures.members(job_part, change, nodes, guests)

    async def _connect_all(self, addresses: Iterable[str]) -> None:
        await all_of(self.channels.connect(address) for address in addresses if address != self.address)

    async def forget(self, job: str) -> list[str]:
        """Stop a job's part and drop its state; returns the names of threads in which user code still runs."""
        job_part = self.job_parts.pop(job, None)
        if job_part is None:
            return []
        job_part.end()
        joining = self.in_thread(job_part.threads.join, JOIN_SECONDS)
        last = job_part.checkpoints.last_change() if job_part.checkpoints is not None else asyncio.sleep(0, ())
        stuck, _ = await asyncio.gather(joining, last)
        if stuck:
            logger.warning("job %r: user code still runs in %s", job, ", ".join(stuck))
        return stuck

    def job_part_ended(self, job: str) -> None:
        """Report the end of all instances of a job here; called from any thread."""
        self.report_soon()

    def job_failed(self, job: str, error: BaseException) -> None:
        """Report the error of a job here; called from any thread."""
        # A job with checkpoints restarts after most errors; the scheduler logs those after which it does not.
        job_part = self.job_parts.get(job)
        restarts = job_part is not None and job_part.checkpoints is not None
        level = logging.WARNING if restarts else logging.ERROR
        logger.log(level, "job %r cannot continue on %s: %s", job, self.address, error)
        self.report_soon()

    # channels

    def peer(self, address: str) -> Peer:
        """Return the connection to another node of a job, which `prepare` has made.

        Raises
        ------
        NodeLost
            If the connection has been lost since.
        """
        return self.channels.peer(address)

    async def stream(self, comm: Comm, sender: str, lane: str = "comm", incarnation: int = 0) -> str:
        """Read what another node sends; the handler of the ``elastic_stream`` operation."""
        await self.channels.serve(comm, sender, lane, incarnation)
        return "dont_reply"

    # time

    def _run_ticks(self) -> None:
        last: dict[tuple[str, str], float] = {}
        errors = ErrorLog(logger)
        while not self._closed:
            self._tick.wait(IDLE_TICK if self._is_idle() else TICK)
            self._tick.clear()
            last = {key: at for key, at in last.items() if key[0] in self.job_parts}
            for act in (self._watch_memory, functools.partial(self._keep_up, last)):
                try:
                    act()
                except Exception as error:  # all jobs need the next round: without it, credit and state never return
                    if program_ends():
                        return
                    errors.note(f"upkeep on worker {self.address}", error)
            errors.settle()
        errors.settle(ends=True)

    def _keep_up(self, last: dict[tuple[str, str], float]) -> None:
        # Not in the loop above, which would keep the last job, and its state, while it waits without any job.
        for job, job_part in list(self.job_parts.items()):
            if job_part.ended:
                continue
            for act in job_part.threads.overdue():
                # Not in this thread: it may run user code, and that may block as the code before it did. Without a
                # thread it would be lost, and its task wait for ever.
                run = functools.partial(_without_turn, act)
                self.guarded(job_part, functools.partial(job_part.threads.start, "overdue", run))
            if job_part.clear_suspects():
                self.report_soon()
            options = job_part.spec.options
            rarely = IDLE_BALANCES if job_part.idle_watch.idle else 1
            for name, interval, act in (
                ("balance", options.balance_interval * rarely, job_part.balance_due),
                ("flush", options.flush_interval, job_part.flush_due),
            ):
                now = time.monotonic()
                if now - last.setdefault((job, name), now) >= interval:
                    last[job, name] = now
                    self.guarded(job_part, act)

    def _is_idle(self) -> bool:
        """Return whether no job runs here whose part is not idle."""
        return all(job_part.ended or job_part.idle_watch.idle for job_part in list(self.job_parts.values()))

    def _watch_memory(self) -> None:
        exhausted = self.memory.look(any(part.stores.in_memory for part in list(self.job_parts.values())))
        for job_part in () if self.memory.tight else list(self.job_parts.values()):
            self.guarded(job_part, job_part.exchange.release_withheld)
        running = [job_part for job_part in list(self.job_parts.values()) if not job_part.ended]
        if self.memory.tight and any(part.stores.relieve_soon(part.threads.start) for part in running):
            return
        if exhausted and running:
            largest = max(running, key=lambda job_part: job_part.stores.nbytes())
            largest.fail(largest.stores.exceeded(self.address, largest.job, self.memory.account()))

    @staticmethod
    def guarded(job_part: JobPart, act: Callable[[], None]) -> None:
        """Run upkeep of a job; an error in it fails the job."""
        try:
            act()
        except Exception as error:  # becomes the job's error: no other caller would report it
            job_part.fail(error)

    def report_soon(self) -> None:
        """Report to the scheduler without waiting for the interval; called from any thread."""
        for job_part in list(self.job_parts.values()):
            job_part.idle_watch.note()
        self.wake()

    def wake(self) -> None:
        """Run the upkeep and the reports at once; called from any thread."""
        self._tick.set()
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and the worker with it
            self.worker.loop.asyncio_loop.call_soon_threadsafe(self.reports.wake)


def _without_turn(act: Callable[[], None]) -> None:
    with TURNS.without_waiting():
        act()


async def _called(rpc: Any, call: Call[B]) -> B:
    reply = await getattr(rpc, call.operation)(**message_of(call))
    if not is_reply(reply):
        raise CommClosedError(f"{call.operation}: no answer, because dask_elastic is not hosted there")
    return read_answer(call, reply)


async def _refuse(**_: Any) -> None:
    """Answer, in a worker that is closing, like a worker that does not host dask_elastic."""
