"""How the scheduler calls workers: one of them, or all nodes of a job."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.protocol.calls import A, Call, is_reply, message_of, read_answer
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.protocol.remote_errors import Relayed, load_error
from dask_elastic.vocab.errors import NodeLost, UnknownJob

if TYPE_CHECKING:
    from distributed import Scheduler

    from dask_elastic.runtime.scheduler.job_record import JobRecord

logger = logging.getLogger("dask_elastic.scheduler")

DISPENSABLE_SECONDS = 5.0
"""Timeout of a call to a node without which the job goes on."""


class WorkerCalls:
    """Calls workers; see `dask_elastic.runtime.worker.handlers`.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Has the workers and the connections to them.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler

    def present(self, address: str) -> bool:
        """Return whether a worker is registered."""
        return address in self.scheduler.workers

    async def one(self, address: str, call: Call[A]) -> A:
        """Call one worker.

        Raises
        ------
        NodeLost
            If it is not registered, does not answer, or does not host dask_elastic.
        Relayed
            The error that the handler raised there.
        """
        if not self.present(address):
            # Dialling would try again and again until Dask's timeout.
            raise NodeLost(f"worker {address} has left the cluster, and its part of the job with it")
        try:
            reply = await getattr(self.scheduler.rpc(address), call.operation)(**message_of(call))
        except (TimeoutError, OSError) as error:
            raise NodeLost(f"worker {address} does not answer {call.operation!r}: {error}") from error
        if not is_reply(reply):
            raise NodeLost(f"worker {address} is closing, or does not host dask_elastic")
        if "error" in reply:
            raise Relayed(reply["error"])
        return read_answer(call, reply)

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

        await asyncio.gather(*(ask(node, address) for node, address in record.spec.members))
        return {node: found[node] for node in sorted(found)}

    async def _of_member(
        self, record: JobRecord, node: int, address: str, call: PartCall[A], found: dict[int, A]
    ) -> None:
        """Call a node and put its answer into `found`, unless the job goes on without it and it does not answer."""
        if record.needs(address):
            found[node] = await self.one(address, call)
            return
        try:
            found[node] = await asyncio.wait_for(self.one(address, call), DISPENSABLE_SECONDS)
        except Relayed as error:
            if not isinstance(load_error(error.data), UnknownJob):
                raise
        except (NodeLost, TimeoutError) as error:
            logger.info("job %r: %s has not answered %s: %r", record.name, address, call.operation, error)

    async def tell(self, record: JobRecord, call: PartCall[Any]) -> None:
        """Call every node of a job that is still registered; errors are logged."""
        present = [address for address in record.addresses if self.present(address)]
        for result in await asyncio.gather(*(self.one(a, call) for a in present), return_exceptions=True):
            if isinstance(result, BaseException):
                logger.warning("job %r: %s: %s", record.name, call.operation, result)
