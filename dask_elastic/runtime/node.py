"""A Dask worker as a node: the jobs' parts that it hosts, and the channels to the other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import pyarrow as pa
from distributed.comm.core import CommClosedError

from dask_elastic.runtime.allocator import keep_pages
from dask_elastic.runtime.commands import Commands
from dask_elastic.runtime.deployment import Deployment
from dask_elastic.runtime.ingress import Ingress
from dask_elastic.runtime.job_spec import JobSpec
from dask_elastic.runtime.lanes import CommReader, SocketReader
from dask_elastic.runtime.packet import Packet
from dask_elastic.runtime.peer import Peer
from dask_elastic.runtime.read_queue import batches_of
from dask_elastic.runtime.report import load_error, part_report
from dask_elastic.runtime.stage_door import StageDoor
from dask_elastic.runtime.switching import INTERVAL
from dask_elastic.vocab.errors import ElasticError, NodeLost, ProtocolError

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.comm import Comm

logger = logging.getLogger("dask_elastic.node")

T = TypeVar("T")

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
        self.deployments: dict[str, Deployment] = {}
        self.commands = Commands(self)
        self.door = StageDoor(self)
        self._peers: dict[str, Peer] = {}
        self._parting: list[Peer] = []
        self._connecting = asyncio.Lock()
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="elastic-control")
        self._closed = threading.Event()
        self._wanted_report = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self._readers: set[CommReader | SocketReader] = set()

    async def start(self) -> None:
        """Take up the worker's handlers and start the node's own threads."""
        INTERVAL.shorten()
        keep_pages()
        self.worker.handlers["elastic_stream"] = self.stream
        self.worker.handlers.update({**self.commands.handlers(), **self.door.handlers()})
        threading.Thread(target=self._run_ticks, name="elastic-ticks", daemon=True).start()
        self._spawn(self._run_reports())

    async def close(self) -> None:
        """End everything that runs here and give the handlers back."""
        self._closed.set()
        for name in ("elastic_stream", *self.commands.handlers(), *self.door.handlers()):
            self.worker.handlers.pop(name, None)
        for job in list(self.deployments):
            await self.forget(job)
        for task in list(self._background):
            task.cancel()
        for peer in (*self._peers.values(), *self._parting):
            await peer.close()
        for reader in list(self._readers):
            reader.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        INTERVAL.restore()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

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
        await self._connect_all(spec)
        if spec.job in self.deployments:
            await self.forget(spec.job)

        def build() -> Deployment:
            return Deployment(self, spec, cloudpickle.loads(components))

        self.deployments[spec.job] = await self.in_thread(build)

    async def members(self, job: str, nodes: Sequence[str], guests: Sequence[int]) -> None:
        """Learn which nodes a job has from now on, once there is a channel to each of them."""
        deployment = self.deployments[job]
        spec = replace(deployment.spec, nodes=tuple(nodes), guests=tuple(guests))
        await self._connect_all(spec)
        deployment.spec = spec

    async def _connect_all(self, spec: JobSpec) -> None:
        for _, address in spec.members:
            if address != self.worker.address:
                await self._connect(address)

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
        self._report_soon()

    def job_failed(self, job: str, error: BaseException) -> None:
        """Something here failed the job; called from any thread."""
        logger.error("job %r failed on %s: %s", job, self.worker.address, error)
        self._report_soon()

    # channels

    def peer(self, address: str) -> Peer:
        """Return the way to another node of a job; `prepare` has connected it.

        Raises
        ------
        NodeLost
            If the connection has been lost since.
        """
        peer = self._peers.get(address)
        if peer is None:
            raise NodeLost(f"the channel from {self.worker.address} to {address} is gone")
        return peer

    async def _connect(self, address: str) -> None:
        # Jobs that are submitted at a time must share one channel, or their messages to a node would have no order.
        async with self._connecting:
            if address in self._peers:
                return
            peer = Peer(self.worker, address, self._peer_broken)
            await peer.connect()
            self._peers[address] = peer

    def _peer_broken(self, address: str, error: BaseException) -> None:
        peer = self._peers.pop(address, None)
        if peer is not None:
            self._parting.append(peer)
            self._spawn(self._part(peer))
        self._fail_jobs_with(address, NodeLost(f"the channel from {self.worker.address} to {address} broke: {error!r}"))

    async def _part(self, peer: Peer) -> None:
        await peer.close()
        self._parting.remove(peer)

    def _fail_jobs_with(self, address: str, error: ElasticError) -> None:
        for deployment in list(self.deployments.values()):
            if deployment.needs(address) and not deployment.ended and not deployment.complete:
                deployment.fail(error)

    async def stream(self, comm: Comm, sender: str, lane: str = "comm") -> str:
        """Read what another node sends us; the handler behind the ``elastic_stream`` operation."""
        ingress = Ingress(self, sender)
        reader = (SocketReader if lane == "socket" else CommReader)(comm, functools.partial(self._ingest, ingress))
        self._readers.add(reader)
        try:
            error = await reader.ended()
            # Our own way there would notice no earlier than at its next write.
            if not self._closed.is_set():
                self._peer_broken(sender, error)
        finally:
            self._readers.discard(reader)
            reader.close()
        return "dont_reply"

    def _ingest(self, ingress: Ingress, packet: Packet) -> None:
        try:
            ingress.handle(packet)
        except Exception as error:  # whatever is wrong with a packet breaks the jobs that use the channel
            sender = ingress.sender
            logger.exception("a packet from %s", sender)
            reason = ProtocolError(f"a packet from {sender} to {self.worker.address} cannot be read: {error!r}")
            self._fail_jobs_with(sender, reason)

    # time

    def _run_ticks(self) -> None:
        due: dict[tuple[str, str], float] = {}
        while not self._closed.wait(TICK):
            due = {key: at for key, at in due.items() if key[0] in self.deployments}
            for job, deployment in list(self.deployments.items()):
                if deployment.ended:
                    continue
                options = deployment.spec.options
                for name, interval, act in (
                    ("balance", options.balance_interval, deployment.balance_due),
                    ("flush", options.flush_interval, deployment.flush_due),
                ):
                    now = time.monotonic()
                    if now >= due.setdefault((job, name), now + interval):
                        due[job, name] = now + interval
                        self._guarded(deployment, act)

    @staticmethod
    def _guarded(deployment: Deployment, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a fault in the engine's own upkeep is the job's error, never silent
            deployment.fail(error)

    def _report_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to report to
            self.worker.loop.asyncio_loop.call_soon_threadsafe(self._wanted_report.set)

    async def _run_reports(self) -> None:
        while not self._closed.is_set():
            interval = min((d.spec.options.report_interval for d in self.deployments.values()), default=1.0)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wanted_report.wait(), interval)
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
                job=deployment.job, generation=deployment.spec.generation, node=deployment.node, report=report
            )
        except (CommClosedError, OSError, AttributeError) as error:
            # The next report carries everything again; a scheduler that stays away closes this worker.
            logger.debug("report of job %r did not get through: %r", deployment.job, error)
            return
        deployment.told_of_end = ended
