"""Drives an executor of the resource-centric paradigm, whose key groups come and go.

Notes
-----
Decisions 86 and 99. The rules of order, each of which a mutant of the simulator's tests breaks:

- What changes after it was copied is sent again, at the latest when the groups leave.
- Groups leave only when their rows are processed and the outputs have left, and a fence has passed behind these.
- State is copied, taken out and installed in threads of their own, not under the control lock: other groups go on.
- What was copied is dropped if the move is cancelled, and whatever of it comes later is refused.
- A group resumes when its state is in the store, with the rows that have waited, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.drivers.executor_driver import ControlRecord
from dask_elastic.executor.drivers.home_driver import HomeDriver, HomeHost
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.groups.exchange import Exchange
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.groups.incoming_groups import IncomingGroups
from dask_elastic.executor.groups.outgoing_groups import OutgoingGroups
from dask_elastic.vocab.errors import MoveRefused, ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock


class GroupHost(HomeHost, Protocol):
    """What carries out the effects of a `GroupDriver`."""

    def groups_held(self, version: int) -> Any:
        """Report that what arrives for groups to come waits, and that tasks have done what they had taken before."""
        ...

    def groups_drained(self, version: int) -> Any:
        """Report that groups may leave, or let them leave; see `GroupDriver.give`."""
        ...

    def groups_exchanged(self, version: int) -> Any:
        """Report that the executor has given and got all groups of a move."""
        ...

    def copy_of_groups(self, version: int, loses: Mapping[int, int]) -> OutgoingGroups:
        """Begin to copy the state of groups, each for its next executor."""
        ...

    def send_copied(self, executor: int, copied: CopiedGroups) -> Any:
        """Send a portion of state to another executor of the operator, and wait until it is installed."""
        ...

    def send_fence(self, version: int) -> Any:
        """Send a fence behind all outputs to every node."""
        ...

    def await_fence(self, version: int) -> Any:
        """Wait until the fence has passed at every node."""
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
        self._outgoing: OutgoingGroups | None = None
        self._incoming: IncomingGroups | None = None
        self._make_lock = make_lock
        self._incoming_lock = make_lock()
        # The newest move that has ended here: what comes late of it is refused.
        self._over = -1

    def copy_groups(self, version: int, loses: Mapping[int, int]) -> Steps[None]:
        """Copy the state of groups that are about to leave to their next executors, while they are processed here.

        Parameters
        ----------
        version : int
            The version of the first tier that the move leads to.
        loses : mapping of int to int
            The next executor of each group.

        Raises
        ------
        MoveRefused
            If the move was cancelled.
        """
        # The thread may begin late, and a copy ends the one that the store has: that of the next move.
        with self._incoming_lock:
            self._refuse_if_over(version)
            copy = self._outgoing = yield partial(self.host.copy_of_groups, version, loses)
        while copy.goes_on:
            for target, portion in copy.round():
                yield partial(self.host.send_copied, target, portion)

    def receive_copied(self, copied: CopiedGroups) -> Steps[None]:
        """Install a portion of the state of groups that may come.

        Raises
        ------
        MoveRefused
            If the move was cancelled, or another one began.
        ProtocolError
            If it does not follow the portion before, or the executor owns one of the groups.
        """
        if owned := self.executor.owned & {*copied.groups}:
            raise ProtocolError(f"{self.identity} owns groups {sorted(owned)}: their state cannot be installed")
        yield partial(self._incoming_for(copied.version).install, copied)

    def _incoming_for(self, version: int) -> IncomingGroups:
        with self._incoming_lock:
            found = self._incoming
            self._refuse_if_over(version)
            if found is not None and version < found.version:
                raise MoveRefused(f"the move of groups of {self.identity} to version {version} is over")
            if found is None or found.version < version:
                found = self._incoming = IncomingGroups(version, self.identity, self.executor.store, self._make_lock)
            return found

    def _refuse_if_over(self, version: int) -> None:
        if version <= self._over:
            raise MoveRefused(f"the move of groups of {self.identity} to version {version} is over")

    def forget_groups(self, version: int) -> Steps[None]:
        """End a move that was cancelled before any upstream instance has switched."""
        with self._incoming_lock:
            self._over = max(self._over, version)
            incoming, self._incoming = self._incoming, None
            outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            yield outgoing.end
        yield from self.handle(events.ForgetGroups(version))
        if incoming is not None:
            yield incoming.drop

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
            yield partial(self.host.send_fence, version)
            copy, self._outgoing = self._outgoing, None
            if copy is None or copy.version != version:
                yield from self._hand_over_all(exchange)
            else:
                yield from self._hand_over_rest(exchange, copy)
        yield from self.handle(events.GroupsGiven(version))

    def _hand_over_all(self, exchange: Exchange) -> Steps[None]:
        """Hand groups over whose state was not copied before."""
        version, at = exchange.version, exchange.left_at
        yield partial(self.host.await_fence, version)
        for target, groups in _by_target(exchange).items():
            handed = yield partial(HandedGroups.take_out, self.executor, version, groups, at)
            yield partial(self.host.send_groups, target, handed)

    def _hand_over_rest(self, exchange: Exchange, copy: OutgoingGroups) -> Steps[None]:
        """Hand groups over whose state was copied before; nothing of it changes any more."""
        version, at = exchange.version, exchange.left_at
        by_target, lasts = _by_target(exchange), {}
        for target in by_target:
            last = None
            for portion in copy.rest(target):
                if last is not None:
                    yield partial(self.host.send_copied, target, last)
                last = portion
            lasts[target] = last or copy.nothing(target)
        yield copy.end
        yield partial(self.host.await_fence, version)
        for target, groups in by_target.items():
            handed = HandedGroups.of(self.executor, version, groups, at, lasts[target])
            yield partial(self.host.send_groups, target, handed)
        # Behind the hand-over, for which rows wait.
        yield partial(self.executor.store.remove, exchange.loses)

    def receive_groups(self, handed: HandedGroups) -> Steps[None]:
        """Install groups that another executor has given."""
        yield partial(handed.install, self.executor, self._incoming_for(handed.version))
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
                case do.GroupsHeld(version):
                    reports.append(partial(self.host.groups_held, version))
                case do.GroupsDrained(version):
                    reports.append(partial(self.host.groups_drained, version))
                case do.GroupsExchanged(version):
                    with self._incoming_lock:
                        self._over, self._incoming = max(self._over, version), None
                    reports.append(partial(self.host.groups_exchanged, version))
                case _:
                    others.append(instruction)
        yield from super()._carry_out(others)
        yield from reports


def _by_target(exchange: Exchange) -> dict[int, tuple[int, ...]]:
    """Return the groups that leave by their next executor."""
    targets = sorted({*exchange.loses.values()})
    return {target: tuple(group for group, to in exchange.loses.items() if to == target) for target in targets}
