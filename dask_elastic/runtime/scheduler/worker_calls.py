"""How the scheduler calls workers: one of them, or all nodes of a job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dask_elastic.runtime.protocol.calls import A, Call, Version, is_reply, message_of, read_answer
from dask_elastic.runtime.protocol.concurrent_calls import all_of
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.protocol.remote_errors import Relayed, load_error, text_of
from dask_elastic.vocab.errors import ElasticError, JobEnded, NodeLost, UnknownJob

if TYPE_CHECKING:
    from distributed import Scheduler

    from dask_elastic.runtime.scheduler.job_record import JobRecord

logger = logging.getLogger("dask_elastic.scheduler")

T = TypeVar("T")

DISPENSABLE_SECONDS = 5.0
"""Timeout of a call to a node without which the job goes on."""

REPORT_SECONDS = 5.0
"""Seconds within which a part that has ended by itself reports why."""

PINGS = 2
"""Unanswered pings after which a worker counts as hung; the scheduler may have been busy during one of them."""


class NotHosting(NodeLost):
    """The worker answers, but does not host dask_elastic."""


class WorkerCalls:
    """Calls workers; see `dask_elastic.runtime.worker.handlers`.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Has the workers and the connections to them.
    timeout : float
        Seconds without an answer after which a worker is pinged, and after which it counts as hung if it does not
        answer the pings either.
    on_part_lost : callable
        Called with a job and the address of a worker that the job needs, and that answers that it hosts no part of it.

    Notes
    -----
    A call may take long, for example because state is large or user code is imported. It has no limit as long as the
    worker answers pings.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        timeout: float,
        on_part_lost: Callable[[JobRecord, str], None] = lambda record, address: None,
    ):
        self.scheduler = scheduler
        self.timeout = timeout
        self.on_part_lost = on_part_lost

    def present(self, address: str) -> bool:
        """Return whether a worker is registered."""
        return address in self.scheduler.workers

    async def one(self, address: str, call: Call[A]) -> A:
        """Call one worker.

        Raises
        ------
        NodeLost
            If it is not registered, hangs, or does not host dask_elastic.
        Relayed
            The error that the handler raised there.
        """
        if not self.present(address):
            # Dialling would try again and again until Dask's timeout.
            raise NodeLost(f"worker {address} has left the cluster, and its part of the job with it")
        try:
            reply = await self._reply_unless_hung(address, call)
        except (TimeoutError, OSError) as error:
            raise NodeLost(f"worker {address} does not answer {call.operation!r}: {text_of(error)}") from error
        if not is_reply(reply):
            raise NotHosting(f"worker {address} is closing, or does not host dask_elastic")
        if "error" in reply:
            raise Relayed(reply["error"])
        return read_answer(call, reply)

    async def _reply_unless_hung(self, address: str, call: Call[Any]) -> Any:
        replying = asyncio.ensure_future(self._reply(address, call))
        try:
            while not (await asyncio.wait({replying}, timeout=self.timeout))[0]:
                if not await self.answers(address):
                    raise TimeoutError("it hangs, or cannot be reached")
            return replying.result()
        finally:
            replying.cancel()

    async def _reply(self, address: str, call: Call[Any]) -> Any:
        return await getattr(self.scheduler.rpc(address), call.operation)(**message_of(call))

    async def answers(self, address: str) -> bool:
        """Return whether a worker answers pings, whether or not it hosts dask_elastic."""
        for _ in range(PINGS):
            try:
                async with asyncio.timeout(self.timeout / PINGS):
                    await self._reply(address, Version())
            except TimeoutError:
                continue
            except OSError:
                return False
            return True
        return False

    async def all(self, record: JobRecord, call: PartCall[A]) -> list[A]:
        """Call every node of a job; see `by_node`."""
        return list((await self.by_node(record, call)).values())

    async def by_node(self, record: JobRecord, call: PartCall[A]) -> dict[int, A]:
        """Call every node of a job.

        Returns
        -------
        dict of int to answer
            The answers by node, in their order. A node without which the job goes on is missing when it does not
            answer within `DISPENSABLE_SECONDS`.
        """
        found: dict[int, A] = {}

        async def ask(node: int, address: str) -> None:
            await self._of_member(record, node, address, call, found)

        await all_of(ask(node, address) for node, address in record.spec.members)
        return {node: found[node] for node in sorted(found)}

    async def _of_member(
        self, record: JobRecord, node: int, address: str, call: PartCall[A], found: dict[int, A]
    ) -> None:
        """Call a node and put its answer into `found`, unless the job goes on without it and it does not answer."""
        if record.needs(address):
            found[node] = await self.of_home(record, address, call)
            return
        try:
            found[node] = await asyncio.wait_for(self.one(address, call), DISPENSABLE_SECONDS)
        except Relayed as error:
            if not _relays(error, UnknownJob):
                raise
        except (NodeLost, TimeoutError) as error:
            logger.info("job %r: %s has not answered %s: %r", record.name, address, call.operation, error)

    async def of_home(self, record: JobRecord, address: str, call: PartCall[A]) -> A:
        """Call a node that the job needs.

        Raises
        ------
        NodeLost
            If it answers, but hosts no part of the job: its process was replaced, for example.
        Relayed
            The error that the handler raised there. A part that has ended by itself reports why, which comes first.
        """
        running = record.live and not record.starting and record.runs(call.generation)
        try:
            return await self.one(address, call)
        except Relayed as error:
            if _relays(error, JobEnded):
                await self._until_reported(record, call.generation)
            if not _relays(error, UnknownJob):
                raise
            if not (running and record.live and not record.starting and record.runs(call.generation)):
                raise
            self.on_part_lost(record, address)
            raise NodeLost(f"worker {address} hosts no part of job {record.name!r} any more") from error

    @staticmethod
    async def _until_reported(record: JobRecord, generation: int) -> None:
        """Return when a generation has ended of which a part has, or if that part does not report why in time."""
        if record.live and record.runs(generation):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await record.over()

    async def tell(self, record: JobRecord, call: PartCall[Any]) -> None:
        """Call every node of a job that is still registered; errors are logged."""
        present = [address for address in record.addresses if self.present(address)]
        for result in await asyncio.gather(*(self.one(a, call) for a in present), return_exceptions=True):
            if isinstance(result, BaseException):
                logger.warning("job %r: %s: %s", record.name, call.operation, text_of(result))


def _relays(error: Relayed, kind: type[ElasticError]) -> bool:
    """Return whether a worker has relayed an error of a kind; the scheduler may lack the classes of others."""
    try:
        return isinstance(load_error(error.data), kind)
    except Exception:  # loading an object of user code may raise any exception
        return False


async def unless_over(record: JobRecord, call: Awaitable[T], gone: Callable[[JobRecord], ElasticError]) -> T:
    """Return the answer of a call, or what else is waited for.

    Parameters
    ----------
    record : JobRecord
        The job.
    call : awaitable
        The call; it is cancelled if the wait ends before.
    gone : callable
        Makes the error if the generation ends.

    Raises
    ------
    JobEnded, PlanningError
        The error that `gone` makes, if the generation ends before the answer comes.
    """
    calling, over = asyncio.ensure_future(call), asyncio.ensure_future(record.over())
    waited: set[asyncio.Future[Any]] = {calling, over}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not calling.done():
            raise gone(record)
        return calling.result()
    finally:
        for future in waited:
            future.cancel()
