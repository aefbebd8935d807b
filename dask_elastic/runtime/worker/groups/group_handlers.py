"""The calls by which key groups move between executors of a job's nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dask_elastic.runtime.protocol import group_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.worker.groups.group_moves import GroupMoves
from dask_elastic.runtime.worker.hosting_node import HostingNode
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.vocab.errors import JobEnded


class GroupHandlers:
    """Answers the calls that move key groups.

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
            group_calls.CopyGroups.handled_by(self.copy),
            group_calls.HoldGroups.handled_by(self.hold),
            group_calls.SwitchGroups.handled_by(self.switch),
            group_calls.GiveGroups.handled_by(self.give),
            group_calls.ResumeGroups.handled_by(self.resume),
            group_calls.ForgetGroups.handled_by(self.forget),
            group_calls.InstallCopied.handled_by(self.install_copied),
            group_calls.InstallGroups.handled_by(self.install),
        ]

    async def copy(self, call: group_calls.CopyGroups) -> None:
        """Have executors copy the state of the groups that they are to lose."""
        await _result(await self._node.in_thread(self._groups(call).copy, call))

    async def hold(self, call: group_calls.HoldGroups) -> None:
        """Have executors hold what arrives for the groups that they gain."""
        await _result(await self._node.in_thread(self._groups(call).hold, call))

    async def switch(self, call: group_calls.SwitchGroups) -> group_calls.GroupsMoved:
        """Have the upstream instances here use the next table."""
        return await _result(await self._node.in_thread(self._groups(call).switch, call))

    async def give(self, call: group_calls.GiveGroups) -> group_calls.GroupsMoved:
        """Have executors here give their groups."""
        return await _result(await self._node.in_thread(self._groups(call).give, call))

    async def resume(self, call: group_calls.ResumeGroups) -> group_calls.GroupsMoved:
        """Have the upstream instances here send batches again."""
        return await self._node.in_thread(self._groups(call).resume, call)

    async def forget(self, call: group_calls.ForgetGroups) -> None:
        """End a move that was cancelled."""
        await self._node.in_thread(self._groups(call).forget, call)

    async def install_copied(self, call: group_calls.InstallCopied) -> None:
        """Install a portion of the state of groups that may come."""
        await self._node.in_thread(self._groups(call).install_copied, call)

    async def install(self, call: group_calls.InstallGroups) -> None:
        """Install groups that an executor of another node gives."""
        await self._node.in_thread(self._groups(call).install, call)

    def _groups(self, call: PartCall[Any]) -> GroupMoves:
        part = self._part(call)
        if part.ended:
            raise JobEnded(f"job {call.job!r} has ended on worker {self._node.address}")
        return part.groups


async def _result(waited: Future[group_calls.GroupsMoved]) -> group_calls.GroupsMoved:
    # Not in a thread of the pool, since moves may take long.
    return await asyncio.shield(asyncio.wrap_future(waited))
