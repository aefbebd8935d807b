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
from dask_elastic.vocab.errors import JobEnded
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
            home_calls.CopyHome.handled_by(self.copy_home),
            home_calls.CopyState.handled_by(self.copy_state),
            home_calls.PrepareHome.handled_by(self.prepare),
            home_calls.CancelHome.handled_by(self.cancel),
            home_calls.MoveHome.handled_by(self.move),
            home_calls.InstallHome.handled_by(self.install),
        ]

    async def copy_home(self, call: home_calls.CopyHome) -> home_calls.HomeCopied:
        """Copy the state of an executor from here; returns when little is left that changes meanwhile."""
        part, executor = self._running(call), ExecutorId(call.operator, call.executor)
        copied = await self._node.in_thread(part.moves.copies.begin, executor, call.table)
        return await asyncio.shield(asyncio.wrap_future(copied))

    async def copy_state(self, call: home_calls.CopyState) -> None:
        """Install state of an executor that may come here."""
        await self._node.in_thread(self._running(call).arrivals.copy, call)

    async def prepare(self, call: home_calls.PrepareHome) -> None:
        """Hold what arrives for an executor whose home this node becomes."""
        part, executor = self._running(call), ExecutorId(call.operator, call.executor)
        await self._node.in_thread(part.arrivals.prepare, executor, call.tables)

    async def cancel(self, call: home_calls.CancelHome) -> None:
        """End what `copy_home` and `prepare` have begun."""
        part, executor = self._part(call), ExecutorId(call.operator, call.executor)
        part.moves.copies.cancelled(executor, call.version)
        await self._node.in_thread(part.arrivals.cancel, executor, call.version)

    async def move(self, call: home_calls.MoveHome) -> home_calls.HomeMoved:
        """Move the home of an executor from here; returns when it has begun at its new one."""
        part, executor = self._running(call), ExecutorId(call.operator, call.executor)
        moved = await self._node.in_thread(part.moves.begin, executor, call.table, call.cores)
        # Not in a thread of the pool, since moves may take long.
        return await asyncio.shield(asyncio.wrap_future(moved))

    async def install(self, call: home_calls.InstallHome) -> dict[int, int]:
        """Continue an executor here that another home hands over."""
        return await self._node.in_thread(self._running(call).arrivals.install, call)

    def _running(self, call: PartCall[Any]) -> JobPart:
        part = self._part(call)
        if part.ended:
            raise JobEnded(f"job {call.job!r} has ended on worker {self._node.address}")
        return part
