"""Peer failures: finds out whether a lost node has died, reports it to the scheduler, and lets jobs fail over."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from distributed.comm.core import CommClosedError

from dask_elastic.runtime.protocol.job_spec import VACANT
from dask_elastic.runtime.protocol.reports import SuspectBatch, Suspects
from dask_elastic.runtime.transport.ended_process import has_died
from dask_elastic.runtime.worker.hosting_node import HostingNode
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.vocab.errors import NodeLost

logger = logging.getLogger("dask_elastic.node")

TOGETHER_SECONDS = 0.1
"""Workers that die within this time of each other did not die of each other's rows."""

REPORT_SECONDS = 0.5
"""The rows of a dead node are replayed after this time even if the scheduler has not confirmed the report of them."""


class NodeFailures:
    """Handles the failures of other nodes, one at a time.

    Parameters
    ----------
    node : HostingNode
        This node.

    Notes
    -----
    A process may have died of the rows that it was processing. Before they are replayed elsewhere, three things must be
    known: whether the process died, which others died at the same time, and that the scheduler has the report of these
    rows; if this node dies next, only the scheduler can name the poison batch. The procedure is the same whether the
    broken channel or the scheduler's announcement comes first.
    """

    def __init__(self, node: HostingNode):
        self.node = node
        self._in_order = ThreadPoolExecutor(1, thread_name_prefix="elastic-control-members")
        self._under_way: set[asyncio.Task[Any]] = set()
        self._numbers = itertools.count(1)
        self._one_at_a_time = asyncio.Lock()

    def note(self, address: str, error: NodeLost) -> None:
        """Begin the failover from a node that was given up; called on the event loop."""
        running = [job.job for job in self._running if address in job.spec.nodes]
        if running:
            logger.warning("lost a worker of %s: %s", ", ".join(map(repr, running)), error)
        task = self.node.spawn(self._fail_over(address, error), f"the failover from {address}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _fail_over(self, address: str, error: NodeLost) -> None:
        died = await self._died([address])
        for job_part in list(self.node.job_parts.values()):
            await self._act(job_part, died, job_part.node_lost, address, error, address in died)
        self.node.report_soon()

    async def members(self, job_part: JobPart, change: int, nodes: Sequence[str], guests: Sequence[int]) -> None:
        """Change the nodes of a job as the scheduler announced."""
        if self._under_way:
            # What this node itself found out about a loss takes effect before the announcement of the removal.
            await asyncio.wait(set(self._under_way))
        removed = {*job_part.spec.nodes} - {*nodes, *job_part.members.lost, VACANT}
        died = await self._died(removed)
        await self._act(job_part, died, job_part.change_members, change, tuple(nodes), tuple(guests), died)

    @property
    def _running(self) -> list[JobPart]:
        return [job_part for job_part in self.node.job_parts.values() if not job_part.ended]

    async def _died(self, addresses: Collection[str]) -> set[str]:
        """Return which of some nodes have died; first give up those that died with them and could get their tasks."""
        died = await _dead(addresses)
        if any(job_part.processing_on(address) for job_part in self._running for address in died):
            await asyncio.sleep(TOGETHER_SECONDS)
            for other in await _dead(self._replacements() - died):
                self.node.channels.give_up(other, "its process has ended")
        return died

    def _replacements(self) -> set[str]:
        """Return the other nodes on which executors at home here have tasks: tasks there may replay the rows."""
        found = {
            job_part.spec.nodes[node]
            for job_part in self._running
            for home in list(job_part.homes.values())
            for node in home.executor.task_nodes()
        }
        return found - {self.node.address, VACANT}

    async def _act(self, job_part: JobPart, died: Collection[str], act: Callable[..., None], *arguments: Any) -> None:
        """Run a failover off the event loop, after a report to the scheduler of what dead nodes were processing.

        Calls run one at a time, so that the last report to the scheduler belongs to the last failover.
        """
        async with self._one_at_a_time:
            try:
                await self._report_and_act(job_part, died, functools.partial(act, *arguments))
            except Exception as error:  # becomes the job's error: no other caller waits for it
                job_part.fail(error)

    async def _report_and_act(self, job_part: JobPart, died: Collection[str], act: Callable[[], None]) -> None:
        number = next(self._numbers)
        batches = [batch for address in died for batch in job_part.processing_on(address)]
        if batches:
            await self._report(job_part, number, batches)
        await asyncio.get_running_loop().run_in_executor(self._in_order, act)
        if batches:
            job_part.suspects_reported = number

    async def _report(self, job_part: JobPart, number: int, batches: list[tuple[str, str]]) -> None:
        """Report to the scheduler what a dead node was processing, before this node replays it and may die of it."""
        spec = job_part.spec
        suspects = tuple(SuspectBatch(*batch) for batch in batches)
        call = Suspects(*spec.generation_id, spec.node, number, suspects, spec.incarnation)
        try:
            await asyncio.wait_for(self.node.call_scheduler(call), REPORT_SECONDS)
        except (TimeoutError, CommClosedError, OSError) as error:
            logger.info("job %r: the scheduler did not confirm the report of %s: %r", spec.job, batches, error)

    def close(self) -> None:
        """Stop; failovers that have not begun are dropped."""
        self._in_order.shutdown(wait=False, cancel_futures=True)


async def _dead(addresses: Collection[str]) -> set[str]:
    listed = sorted(addresses)
    answers = await asyncio.gather(*map(has_died, listed))
    return {address for address, died in zip(listed, answers, strict=True) if died}
