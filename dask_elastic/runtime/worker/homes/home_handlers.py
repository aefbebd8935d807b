"""The calls by which homes of executors move from or to a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dask_elastic.runtime.protocol import home_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.worker.hosting_node import HostingNode
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.vocab.errors import MoveRefused
from dask_elastic.vocab.identity import ExecutorId


class HomeHandlers:
    """Answers the calls that move homes.

    Parameters
    ----------
    node : HostingNode
        The node.
    part : callable
        Returns the job's part that a call is about.
    """

    def __init__(self, node: HostingNode, part: Callable[[PartCall[Any]], JobPart]):
        self._node = node
        self._part = part

    def handled(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [
            home_calls.PrepareHome.handled_by(self.prepare),
            home_calls.CancelHome.handled_by(self.cancel),
            home_calls.MoveHome.handled_by(self.move),
            home_calls.InstallHome.handled_by(self.install),
        ]

    async def prepare(self, call: home_calls.PrepareHome) -> None:
        """Hold what arrives for an executor whose home this node becomes."""
        part, executor = self._running(call), ExecutorId(call.operator, call.executor)
        await self._node.in_thread(part.arrivals.prepare, executor, call.tables)

    async def cancel(self, call: home_calls.CancelHome) -> None:
        """End what `prepare` has begun."""
        await self._node.in_thread(self._part(call).arrivals.cancel, ExecutorId(call.operator, call.executor))

    async def move(self, call: home_calls.MoveHome) -> home_calls.HomeMoved:
        """Move the home of an executor from here; returns when it has begun at its new one."""
        part, executor = self._running(call), ExecutorId(call.operator, call.executor)
        moved = await self._node.in_thread(part.moves.begin, executor, call.table)
        # Not in a thread of the pool, since moves may take long.
        return await asyncio.shield(asyncio.wrap_future(moved))

    async def install(self, call: home_calls.InstallHome) -> dict[int, int]:
        """Continue an executor here that another home hands over."""
        return await self._node.in_thread(self._running(call).arrivals.install, call)

    def _running(self, call: PartCall[Any]) -> JobPart:
        part = self._part(call)
        if part.ended:
            raise MoveRefused(f"job {call.job!r} has ended on worker {self._node.address}")
        return part
