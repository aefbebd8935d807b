"""A Dask worker as a node: the jobs' parts that it hosts, and the channels to the other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import pyarrow as pa
from distributed.comm.core import CommClosedError
from distributed.core import Status

from dask_elastic.runtime.allocator import keep_pages
from dask_elastic.runtime.channels import Channels
from dask_elastic.runtime.commands import Commands
from dask_elastic.runtime.deployment import Deployment
from dask_elastic.runtime.exposure import check_exposure
from dask_elastic.runtime.ingress import Ingress
from dask_elastic.runtime.job_spec import NOBODY, JobSpec
from dask_elastic.runtime.losses import Losses
from dask_elastic.runtime.memory import Memory
from dask_elastic.runtime.node_options import node_options
from dask_elastic.runtime.peer import Peer, address_of
from dask_elastic.runtime.read_queue import batches_of
from dask_elastic.runtime.report import load_error, part_report
from dask_elastic.runtime.stage_door import StageDoor
from dask_elastic.runtime.switching import INTERVAL

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.comm import Comm

logger = logging.getLogger("dask_elastic.node")

T = TypeVar("T")

ENDING = frozenset({Status.closing, Status.closed, Status.failed})
"""Statuses of a worker that does not come back."""

TICK = 0.1
JOIN_SECONDS = 5.0


class NodeRuntime:
    """Hosts parts of jobs in one Dask worker.

    Parameters
    ----------
    worker : distributed.Worker
        The worker; its event loop carries the channels, and runs nothing that could block.
    """

    def __init__(self, worker: Worker):
        self.worker = worker
        self.options = node_options()
        self.memory = Memory.of(worker, self.options)
        self.deployments: dict[str, Deployment] = {}
        self.commands = Commands(self)
        self.losses = Losses(self)
        self.channels = Channels(worker, self.options, lambda *way: Ingress(self.deployments, *way), self.losses.note)
        self.door = StageDoor(self)
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="elastic-control")
        self._closed = threading.Event()
        self._wanted_report = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def address(self) -> str:
        """The address under which the others know this node."""
        return address_of(self.worker)

    async def start(self) -> None:
        """Take up the worker's handlers and start the node's own threads."""
        INTERVAL.shorten()
        keep_pages()
        self.worker.handlers["elastic_stream"] = self.stream
        self.worker.handlers.update({**self.commands.handlers(), **self.door.handlers()})
        threading.Thread(target=self._run_ticks, name="elastic-ticks", daemon=True).start()
        self.spawn(self._run_reports())

    async def close(self) -> None:
        """End everything that runs here and give the handlers back."""
        self._closed.set()
        for name in ("elastic_stream", *self.commands.handlers(), *self.door.handlers()):
            if self.worker.status in ENDING:
                # The scheduler and the other workers learn of it later, and may ask until then.
                self.worker.handlers[name] = _refuse
            else:
                self.worker.handlers.pop(name, None)
        for job in list(self.deployments):
            await self.forget(job)
        for task in list(self._background):
            task.cancel()
        self.channels.close()
        self.losses.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        INTERVAL.restore()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run something on the event loop until this node ends."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that may block away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(function, *arguments))

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the scheduler's part of dask_elastic, from a thread of ours; raises what it answers with."""
        asking = getattr(self.worker.scheduler, f"elastic_{operation}")(**arguments)
        reply = asyncio.run_coroutine_threadsafe(asking, self.worker.loop.asyncio_loop).result()
        if "error" in reply:
            raise load_error(reply["error"])
        return reply["answer"]

    def read_queue(self, name: str, stopping: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Read what a sink of some job puts on a queue, in a thread of ours."""

        def fetch(address: str, **item: Any) -> Any:
            fetching = self.worker.rpc(address).elastic_held_rows(**item)
            return asyncio.run_coroutine_threadsafe(fetching, self.worker.loop.asyncio_loop).result()

        return batches_of(name, self.ask, fetch, stopping)

    @property
    def spill_directory(self) -> Path:
        """A directory for what does not fit in memory; nobody else was given it."""
        return Path(self.worker.local_directory) / f"elastic-{uuid.uuid4().hex}"

    # jobs

    async def prepare(self, message: dict[str, Any], components: bytes) -> None:
        """Build this node's part of a job, and the channels to the job's other nodes."""
        spec = JobSpec.from_message(message)
        check_exposure([self.address], self.options.require_tls)
        await self._connect_all(address for _, address in spec.members)
        if spec.job in self.deployments:
            await self.forget(spec.job)

        def build() -> Deployment:
            return Deployment(self, spec, cloudpickle.loads(components))

        self.deployments[spec.job] = await self.in_thread(build)

    async def members(self, job: str, change: int, nodes: Sequence[str], guests: Sequence[int]) -> None:
        """Learn which nodes a job has from now on, once there is a channel to each of those that are new."""
        deployment = self.deployments[job]
        # Some of the others may be lost, without anybody here knowing of it yet: dialling them would take long.
        await self._connect_all(address for address in nodes if address not in (*deployment.spec.nodes, NOBODY))
        await self.losses.members(deployment, change, nodes, guests)

    async def _connect_all(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            if address != self.address:
                await self.channels.connect(address)

    async def forget(self, job: str) -> list[str]:
        """Stop a job's part and drop its state; returns the names of threads that user code still holds up."""
        deployment = self.deployments.pop(job, None)
        if deployment is None:
            return []
        deployment.end()
        stuck = await self.in_thread(deployment.join, JOIN_SECONDS)
        if stuck:
            logger.warning("job %r: user code still runs in %s", job, ", ".join(stuck))
        return stuck

    def job_part_ended(self, job: str) -> None:
        """All instances here have ended; called from any thread."""
        self.report_soon()

    def job_failed(self, job: str, error: BaseException) -> None:
        """Something here failed the job; called from any thread."""
        logger.error("job %r failed on %s: %s", job, self.address, error)
        self.report_soon()

    # channels

    def peer(self, address: str) -> Peer:
        """Return the way to another node of a job; `prepare` has connected it.

        Raises
        ------
        NodeLost
            If the connection has been lost since.
        """
        return self.channels.peer(address)

    async def stream(self, comm: Comm, sender: str, lane: str = "comm", incarnation: int = 0) -> str:
        """Read what another node sends us; the handler behind the ``elastic_stream`` operation."""
        await self.channels.serve(comm, sender, lane, incarnation)
        return "dont_reply"

    # time

    def _run_ticks(self) -> None:
        due: dict[tuple[str, str], float] = {}
        while not self._closed.wait(TICK):
            self._watch_memory()
            due = {key: at for key, at in due.items() if key[0] in self.deployments}
            for job, deployment in list(self.deployments.items()):
                if deployment.ended:
                    continue
                if deployment.absolve():
                    self.report_soon()
                options = deployment.spec.options
                for name, interval, act in (
                    ("balance", options.balance_interval, deployment.balance_due),
                    ("flush", options.flush_interval, deployment.flush_due),
                ):
                    now = time.monotonic()
                    if now >= due.setdefault((job, name), now + interval):
                        due[job, name] = now + interval
                        self.guarded(deployment, act)

    def _watch_memory(self) -> None:
        exhausted = self.memory.look()
        for deployment in () if self.memory.tight else list(self.deployments.values()):
            self.guarded(deployment, deployment.release_withheld)
        running = [deployment for deployment in self.deployments.values() if not deployment.ended]
        if exhausted and running:
            largest = max(running, key=lambda deployment: deployment.state_bytes())
            largest.fail(largest.out_of_memory(self.memory.account()))

    @staticmethod
    def guarded(deployment: Deployment, act: Callable[[], None]) -> None:
        """Do something for a job."""
        try:
            act()
        except Exception as error:  # a fault in the engine's own upkeep is the job's error, never silent
            deployment.fail(error)

    def report_soon(self) -> None:
        """Tell the scheduler how things stand; called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to report to
            self.worker.loop.asyncio_loop.call_soon_threadsafe(self._wanted_report.set)

    async def _run_reports(self) -> None:
        while not self._closed.is_set():
            interval = min((d.spec.options.report_interval for d in self.deployments.values()), default=1.0)
            with contextlib.suppress(asyncio.TimeoutError):
                # All nodes report of the same moments: only then the parts of a load that each has are comparable.
                await asyncio.wait_for(self._wanted_report.wait(), interval - time.time() % interval)
            self._wanted_report.clear()
            for deployment in list(self.deployments.values()):
                if deployment.told_of_end:
                    continue
                try:
                    await self._report(deployment)
                except Exception:  # the other jobs, and the next report, need this loop
                    logger.exception("report of job %r", deployment.job)

    async def _report(self, deployment: Deployment) -> None:
        ended = deployment.ended
        report = await self.in_thread(part_report, deployment)
        try:
            await self.worker.scheduler.elastic_report(
                job=deployment.job,
                generation=deployment.spec.generation,
                incarnation=deployment.spec.incarnation,
                node=deployment.node,
                report=report,
            )
        except (CommClosedError, OSError, AttributeError) as error:
            # The next report carries everything again; a scheduler that stays away closes this worker.
            logger.debug("report of job %r did not get through: %r", deployment.job, error)
            return
        deployment.told_of_end = ended


async def _refuse(**_: Any) -> None:
    """Answer, in a worker that is about to end, as one would that does not host dask_elastic."""
