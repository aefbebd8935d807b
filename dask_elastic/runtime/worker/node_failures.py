"""What a node does about others that are lost: it finds out how, says so, and lets its jobs go on without them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from distributed.comm.core import CommClosedError

from dask_elastic.runtime.protocol.job_spec import VACANT
from dask_elastic.runtime.transport.channels import has_died
from dask_elastic.vocab.errors import NodeLost

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.job_part import JobPart
    from dask_elastic.runtime.worker.node import NodeRuntime

logger = logging.getLogger("dask_elastic.node")

TOGETHER_SECONDS = 0.1
"""Workers that die within so short a time have not died of each other's rows."""

TELL_SECONDS = 0.5
"""Longer than this the rows of a lost node do not wait for the scheduler to know of them."""


class NodeFailures:
    """Nodes that jobs here go on without, one after the other.

    Parameters
    ----------
    runtime : NodeRuntime
        The node.

    Notes
    -----
    A process may have died of the rows that it had at hand. These are given to nobody else before it is known whether
    it died, whether others died at the same time, and before the scheduler has been told of them: if this node is the
    next to die, only the scheduler can say of what. Whoever learns first that a node is lost, the channel to it or the
    news that it is out, the way is the same.
    """

    def __init__(self, runtime: NodeRuntime):
        self.runtime = runtime
        self._in_turn = ThreadPoolExecutor(1, thread_name_prefix="elastic-control-comings")
        self._under_way: set[asyncio.Task[Any]] = set()
        self._numbers = itertools.count(1)
        self._one_at_a_time = asyncio.Lock()

    def note(self, address: str, error: NodeLost) -> None:
        """Begin to go on without a node that was given up; called on the event loop."""
        running = [job.job for job in self._running if address in job.spec.nodes]
        if running:
            logger.warning("lost a worker of %s: %s", ", ".join(map(repr, running)), error)
        task = self.runtime.spawn(self._go_on_without(address, error))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _go_on_without(self, address: str, error: NodeLost) -> None:
        died = await self._died([address])
        for job_part in list(self.runtime.job_parts.values()):
            await self._act(job_part, died, job_part.node_lost, address, error, address in died)
        self.runtime.report_soon()

    async def members(self, job_part: JobPart, change: int, nodes: Sequence[str], guests: Sequence[int]) -> None:
        """Let a job have other nodes from now on."""
        if self._under_way:
            # What is known here of how a node was lost counts before the news that it is out.
            await asyncio.wait(set(self._under_way))
        news = {*job_part.spec.nodes} - {*nodes, *job_part.members.lost, VACANT}
        died = await self._died(news)
        await self._act(job_part, died, job_part.change_members, change, tuple(nodes), tuple(guests), died)

    @property
    def _running(self) -> list[JobPart]:
        return [job_part for job_part in self.runtime.job_parts.values() if not job_part.ended]

    async def _died(self, addresses: Collection[str]) -> set[str]:
        """Return those of some nodes that have died, once all that died with them are known to be lost."""
        died = await _dead(addresses)
        if any(job_part.processing_on(address) for job_part in self._running for address in died):
            await asyncio.sleep(TOGETHER_SECONDS)
            for other in await _dead(self._helpers() - died):
                self.runtime.channels.give_up(other, "its process has ended")
        return died

    def _helpers(self) -> set[str]:
        """Return the other nodes on which executors at home here have tasks: they may be given rows."""
        helpers = {
            job_part.spec.nodes[node]
            for job_part in self._running
            for home in job_part.homes.values()
            for node in home.executor.task_nodes()
        }
        return helpers - {self.runtime.address, VACANT}

    async def _act(self, job_part: JobPart, died: Collection[str], act: Callable[..., None], *given: Any) -> None:
        """Have a job do without nodes, away from the event loop; the scheduler knows by then what they had at hand.

        One after the other, so that the last number which the scheduler was told is the last that was acted on.
        """
        async with self._one_at_a_time:
            try:
                await self._tell_and_act(job_part, died, functools.partial(act, *given))
            except Exception as error:  # what a job cannot go on from is its error: nobody else would wait for it
                job_part.fail(error)

    async def _tell_and_act(self, job_part: JobPart, died: Collection[str], act: Callable[[], None]) -> None:
        number = next(self._numbers)
        batches = [batch for address in died for batch in job_part.processing_on(address)]
        if batches:
            await self._tell(job_part, number, batches)
        await asyncio.get_running_loop().run_in_executor(self._in_turn, act)
        if batches:
            job_part.suspects_reported = number

    async def _tell(self, job_part: JobPart, number: int, batches: list[tuple[str, int]]) -> None:
        """Tell the scheduler what a lost node had at hand, before this node does it again and may die of it."""
        spec = job_part.spec
        call = self.runtime.worker.scheduler.elastic_suspects(
            job=spec.job,
            generation=spec.generation,
            incarnation=spec.incarnation,
            node=spec.node,
            number=number,
            batches=batches,
        )
        try:
            await asyncio.wait_for(call, TELL_SECONDS)
        except (TimeoutError, CommClosedError, OSError) as error:
            logger.info("job %r: the scheduler was not told of %s: %r", spec.job, batches, error)

    def close(self) -> None:
        """End; what waits for its turn is dropped."""
        self._in_turn.shutdown(wait=False, cancel_futures=True)


async def _dead(addresses: Collection[str]) -> set[str]:
    listed = sorted(addresses)
    answers = await asyncio.gather(*map(has_died, listed))
    return {address for address, died in zip(listed, answers, strict=True) if died}
