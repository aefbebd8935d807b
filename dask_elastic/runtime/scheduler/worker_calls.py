"""How the scheduler asks workers: one of them, or all nodes of a job."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.protocol.remote_errors import Relayed, load_error
from dask_elastic.vocab.errors import NodeLost, UnknownJob

if TYPE_CHECKING:
    from distributed import Scheduler

    from dask_elastic.runtime.scheduler.job_record import JobRecord

logger = logging.getLogger("dask_elastic.scheduler")

DISPENSABLE_SECONDS = 5.0
"""For so long a question waits for a node without which the job goes on: when it hangs it is given up by then."""

_MISSING = object()


class WorkerCalls:
    """Calls the commands of nodes; see `dask_elastic.runtime.worker.handlers`.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Knows the workers and how to reach them.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler

    def present(self, address: str) -> bool:
        """Return whether a worker is there."""
        return address in self.scheduler.workers

    async def one(self, address: str, operation: str, **arguments: Any) -> Any:
        """Ask one worker.

        Raises
        ------
        NodeLost
            If it is gone, does not answer, or does not host dask_elastic.
        Relayed
            Whatever the command raised there.
        """
        if not self.present(address):
            # Dialling would try again and again until Dask's timeout.
            raise NodeLost(f"worker {address} is gone, and what it held of the job with it")
        try:
            reply = await getattr(self.scheduler.rpc(address), f"elastic_{operation}")(**arguments)
        except (TimeoutError, OSError) as error:
            raise NodeLost(f"worker {address} does not answer {operation!r}: {error}") from error
        if reply is None or "answer" not in reply:
            raise (
                Relayed(reply["error"]) if reply else NodeLost(f"worker {address} is closing, or runs no dask_elastic")
            )
        return reply["answer"]

    async def all(self, record: JobRecord, operation: str, **arguments: Any) -> list[Any]:
        """Ask every node of a job; see `by_node`."""
        return list((await self.by_node(record, operation, **arguments)).values())

    async def by_node(self, record: JobRecord, operation: str, **arguments: Any) -> dict[int, Any]:
        """Ask every node of a job.

        Returns
        -------
        dict of int to anything
            The answers by node, in their order. One without which the job goes on may be missing: it may have died, or
            hang.
        """
        members = record.spec.members
        calls = (self._of_member(record, address, operation, arguments) for _, address in members)
        answers = await asyncio.gather(*calls)
        return {node: answer for (node, _), answer in zip(members, answers, strict=True) if answer is not _MISSING}

    async def _of_member(self, record: JobRecord, address: str, operation: str, arguments: dict[str, Any]) -> Any:
        call = self.one(address, operation, job=record.name, generation=record.spec.generation, **arguments)
        if record.needs(address):
            return await call
        try:
            return await asyncio.wait_for(call, DISPENSABLE_SECONDS)
        except Relayed as error:
            if not isinstance(load_error(error.data), UnknownJob):
                raise
            return _MISSING
        except (NodeLost, TimeoutError) as error:
            logger.info("job %r: %s of %s is missing: %r", record.name, operation, address, error)
            return _MISSING

    async def tell(self, record: JobRecord, operation: str) -> None:
        """Tell every node that is still there; those that are gone need not know."""
        present = [address for address in record.addresses if self.present(address)]
        run = {"job": record.name, "generation": record.spec.generation}
        calls = (self.one(address, operation, **run) for address in present)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                logger.warning("job %r: %s: %s", record.name, operation, result)
