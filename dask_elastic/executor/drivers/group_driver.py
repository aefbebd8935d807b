"""Drives an executor of the resource-centric paradigm, whose key groups come and go.

Notes
-----
Decision 86. The rules of order, each of which a mutant of the simulator's tests breaks:

- Groups leave only when their rows are processed and the outputs have left, and a fence has passed behind these.
- State is taken out and installed in threads of their own, not under the control lock: other groups go on.
- A group resumes when its state is in the store, with the rows that have waited, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.drivers.executor_driver import ControlRecord
from dask_elastic.executor.drivers.home_driver import HomeDriver, HomeHost
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock


class GroupHost(HomeHost, Protocol):
    """What carries out the effects of a `GroupDriver`."""

    def groups_drained(self, version: int) -> Any:
        """Report that groups may leave, or let them leave; see `GroupDriver.give`."""
        ...

    def groups_exchanged(self, version: int) -> Any:
        """Report that the executor has given and got all groups of a move."""
        ...

    def fence(self, version: int) -> Any:
        """Send a fence behind all outputs to every node, and wait until it has passed there."""
        ...

    def send_groups(self, executor: int, groups: HandedGroups) -> Any:
        """Send groups to another executor of the operator, beside the channels that carry rows."""
        ...


class GroupDriver(HomeDriver):
    """Runs one executor that owns key groups.

    Parameters
    ----------
    executor, host, make_lock
        As for `ExecutorDriver`.
    """

    host: GroupHost
    executor: GroupExecutor

    def __init__(self, executor: GroupExecutor, host: GroupHost, make_lock: MakeLock = NoLock):
        super().__init__(executor, host, make_lock)

    def give(self, version: int) -> Steps[None]:
        """Let the groups that leave in a move leave, each to its next executor; called once, after `GroupsDrained`.

        Raises
        ------
        ProtocolError
            If the executor takes no part in this move, or is not drained.
        """
        exchange = self.executor.exchange
        if exchange is None or exchange.version != version or not exchange.is_drained:
            raise ProtocolError(f"{self.identity} cannot give groups for version {version}: it is not drained")
        if exchange.loses:
            yield partial(self.host.fence, version)
            for target in sorted({*exchange.loses.values()}):
                groups = tuple(group for group, to in exchange.loses.items() if to == target)
                at = exchange.left_at
                handed = yield partial(HandedGroups.take_out, self.executor, version, groups, at)
                yield partial(self.host.send_groups, target, handed)
        yield from self.handle(events.GroupsGiven(version))

    def receive_groups(self, handed: HandedGroups) -> Steps[None]:
        """Install groups that another executor has given."""
        yield partial(handed.install, self.executor)
        yield from self.handle(events.GroupsInstalled(handed))

    def _handle_record(self, origin: ExecutorId, record: ControlRecord) -> Steps[None]:
        if isinstance(record, events.EndMark):
            yield from self.handle(record)
        else:
            yield from super()._handle_record(origin, record)

    def _carry_out(self, instructions: Iterable[do.Instruction]) -> Steps[None]:
        others: list[do.Instruction] = []
        reports: list[Callable[[], Any]] = []
        for instruction in instructions:
            match instruction:
                case do.GroupsDrained(version):
                    reports.append(partial(self.host.groups_drained, version))
                case do.GroupsExchanged(version):
                    reports.append(partial(self.host.groups_exchanged, version))
                case _:
                    others.append(instruction)
        yield from super()._carry_out(others)
        yield from reports
