"""Hosts the driver of an executor that owns key groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, closing
from typing import Protocol

from dask_elastic.executor import instructions as do
from dask_elastic.executor.control_records.state_records import StateRecords
from dask_elastic.executor.drivers.group_driver import GroupDriver
from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.groups.outgoing_groups import OutgoingGroups
from dask_elastic.executor.piece import Block, Piece
from dask_elastic.executor.processor import Processor
from dask_elastic.simulator.executor_fibers import ExecutorFibers, FollowedExecutor
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.surroundings import Surroundings
from dask_elastic.topology.component import Component
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import TimersDue

ROWS_AT_ONCE = 3
"""Rows of a portion of state: simulated executors have few keys."""


class GroupSurroundings(Surroundings, Protocol):
    """What executors that own key groups need of the world; implemented by `World`."""

    @property
    def groups(self) -> GroupReports:
        """Takes what executors report."""
        ...


class GroupReports(Protocol):
    """Takes what executors report about a move of groups; implemented by `GroupMoves`."""

    def held(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor holds what arrives for groups to come."""
        ...

    def drained(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor is drained."""
        ...

    def exchanged(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor has given and got all groups."""
        ...

    def send_copied(self, source: ExecutorId, target: int, copied: CopiedGroups) -> FiberSteps:
        """Send a portion of state to another executor, and wait until it is installed."""
        ...

    def send_fence(self, executor: ExecutorId, version: int) -> None:
        """Send a fence to every node."""
        ...

    def await_fence(self, executor: ExecutorId, version: int) -> FiberSteps:
        """Wait until the fence has passed at every node."""
        ...

    def send(self, source: ExecutorId, target: int, groups: HandedGroups) -> None:
        """Send groups to another executor."""
        ...


class FollowedGroupExecutor(FollowedExecutor, GroupExecutor):
    """A `GroupExecutor` that enters its rows, state records and watermarks in the ledgers of a world."""

    @property
    def addressed(self) -> Collection[int]:
        """The groups to which most state records are addressed."""
        return self.owned - self._leaving

    def _enter_apart(
        self, records: StateRecords, groups: Collection[int], record: TimersDue, before: int | None, now: float
    ) -> list[do.Instruction]:
        self.world.record("state record {} for groups {}", record, [*groups])
        self.world.record_ledger.entered(self.identity, record, self.routes.space, groups)
        return super()._enter_apart(records, groups, record, before, now)

    def _enter_first(
        self, records: StateRecords, group: int, record: TimersDue, before: int | None, now: float
    ) -> None:
        super()._enter_first(records, group, record, before, now)
        self.world.record_ledger.moved_first(self.identity, group, self.routes.space)

    def _drop(self, piece: Piece, group: int) -> None:
        record = piece.block.record
        assert record is not None
        self.world.record_ledger.dropped(self.identity, record, group, self.routes.space)
        super()._drop(piece, group)

    def accept(self, block: Block, origin: ExecutorId, batch: Batch, nbytes: int, now: float) -> list[do.Instruction]:
        """Check that the executor owns or expects the groups of all rows, then take them in.

        Raises
        ------
        ProtocolError
            If it does not.
        """
        assert batch.hashes is not None
        here = self.owned | (set() if self.exchange is None else self.exchange.missing.keys())
        elsewhere = {*self.routes.space.shard_of(batch.hashes).tolist()} - here
        if elsewhere:
            raise ProtocolError(f"{self.identity} got rows of the groups {sorted(elsewhere)}, which it does not own")
        return super().accept(block, origin, batch, nbytes, now)


class GroupFibers(ExecutorFibers):
    """One executor that owns key groups: its driver, and the fibers and channels that the driver asks for.

    Parameters
    ----------
    world : GroupSurroundings
        As for `ExecutorFibers`.
    executor : FollowedGroupExecutor
        The executor.
    component : Component
        What it runs.
    """

    world: GroupSurroundings
    executor: FollowedGroupExecutor
    driver: GroupDriver

    def __init__(self, world: GroupSurroundings, executor: FollowedGroupExecutor, component: Component):
        super().__init__(world, executor, component)

    def _make_driver(self) -> GroupDriver:
        return GroupDriver(self.executor, self)

    def give(self, version: int) -> None:
        """Let the groups that leave in a move leave, in a fiber of its own."""
        self.start(f"gives groups for version {version}", self.driver.give(version))

    def copy_groups(self, version: int, loses: Mapping[int, int]) -> FiberSteps:
        """Copy the state of groups that are about to leave."""
        yield from self.drive(self.driver.copy_groups(version, loses))

    def receive_copied(self, copied: CopiedGroups) -> FiberSteps:
        """Install a portion of the state of groups that may come."""
        yield from self.drive(self.driver.receive_copied(copied))

    def receive_groups(self, groups: HandedGroups) -> FiberSteps:
        """Install groups that another executor has given."""
        yield from self.drive(self.driver.receive_groups(groups))

    def forget_groups(self, version: int) -> FiberSteps:
        """End a move that was cancelled."""
        yield from self.drive(self.driver.forget_groups(version))

    # what the driver asks for (GroupHost)

    def processor(self, task: int) -> AbstractContextManager[Processor]:
        """Return the logic of a task, which samples traffic as often as it may."""
        sinks = self.world.placement.node_of(self.identity)
        made = self.world.processor(self.component, task, self.executor.store, sinks)
        made.sample_traffic(self.executor.flows, self.executor.lock, self.now)
        return closing(made)

    def finished(self) -> FiberSteps:
        """Tell the next receivers that the executor has delivered its last output.

        Raises
        ------
        ProtocolError
            If groups are still to leave or to come.
        """
        if self.executor.exchange is not None:
            raise ProtocolError(f"{self.identity} ends while it exchanges groups")
        yield from super().finished()

    def groups_held(self, version: int) -> None:
        """Report that what arrives for groups to come waits."""
        self.world.groups.held(self.identity, version)

    def groups_drained(self, version: int) -> None:
        """Report that the executor is drained."""
        self.world.groups.drained(self.identity, version)

    def groups_exchanged(self, version: int) -> None:
        """Report that the executor has given and got all groups of a move."""
        self.world.groups.exchanged(self.identity, version)

    def copy_of_groups(self, version: int, loses: Mapping[int, int]) -> OutgoingGroups:
        """Begin to copy the state of groups."""
        return OutgoingGroups(version, loses, self.identity, self.executor.store, ROWS_AT_ONCE, small=0)

    def send_copied(self, executor: int, copied: CopiedGroups) -> FiberSteps:
        """Send a portion of state to another executor, and wait until it is installed."""
        yield from self.world.groups.send_copied(self.identity, executor, copied)

    def send_fence(self, version: int) -> None:
        """Send a fence behind all outputs."""
        self.world.groups.send_fence(self.identity, version)

    def await_fence(self, version: int) -> FiberSteps:
        """Wait until the fence has passed everywhere."""
        yield from self.world.groups.await_fence(self.identity, version)

    def send_groups(self, executor: int, groups: HandedGroups) -> None:
        """Send groups to another executor."""
        self.world.groups.send(self.identity, executor, groups)
