"""Hosts the driver of an executor that owns key groups on threads of its home."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from dask_elastic.executor.drivers.group_driver import GroupDriver
from dask_elastic.executor.drivers.steps import run
from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.groups.outgoing_groups import OutgoingGroups
from dask_elastic.executor.processor import Processor
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.homes.awaited_answers import handing_over
from dask_elastic.vocab.identity import ExecutorId


class GroupReports(Protocol):
    """Takes what executors report about a move of groups; implemented by `GroupMoves`."""

    def held(self, executor: ExecutorId, version: int) -> None:
        """Note that what arrives for groups to come waits."""
        ...

    def drained(self, executor: ExecutorId, version: int) -> None:
        """Note that groups of an executor may leave."""
        ...

    def exchanged(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor has given and got all groups of a move."""
        ...

    def send_copied(self, source: ExecutorId, target: int, copied: CopiedGroups) -> None:
        """Send a portion of state to another executor of the operator, and wait until it is installed."""
        ...

    def send_fence(self, executor: ExecutorId, version: int) -> None:
        """Send a fence behind all outputs."""
        ...

    def await_fence(self, executor: ExecutorId, version: int) -> None:
        """Wait until the fence has passed everywhere."""
        ...

    def send(self, source: ExecutorId, target: int, groups: HandedGroups) -> None:
        """Send groups to another executor of the operator."""
        ...


class GroupThreads(ExecutorThreads):
    """One executor that owns key groups: its driver, and the threads and channels that the driver asks for.

    Parameters
    ----------
    executor : GroupExecutor
        The executor.
    reports : GroupReports
        Takes the executor's reports.
    *args, **kwargs
        As for `ExecutorThreads`.
    """

    executor: GroupExecutor
    driver: GroupDriver

    def __init__(self, executor: GroupExecutor, reports: GroupReports, *args: Any, **kwargs: Any):
        self._reports = reports
        super().__init__(executor, *args, **kwargs)

    def _make_driver(self) -> GroupDriver:
        return GroupDriver(self.executor, self, threading.Lock)

    def give(self, version: int) -> None:
        """Let the groups that leave in a move leave, in a thread of its own."""
        self.threads.start(f"{self.identity}-gives", partial(self._give, version))

    def _give(self, version: int) -> None:
        with handing_over(f"key groups of {self.identity} could not be moved"):
            run(self.driver.give(version))

    def copy_groups(self, version: int, loses: Mapping[int, int]) -> None:
        """Copy the state of groups that are about to leave, in the calling thread, which must not read connections."""
        run(self.driver.copy_groups(version, loses))

    def receive_copied(self, copied: CopiedGroups) -> None:
        """Install a portion of the state of groups that may come; in a thread as for `copy_groups`."""
        run(self.driver.receive_copied(copied))

    def forget_groups(self, version: int) -> None:
        """End a move that was cancelled; in a thread as for `copy_groups`."""
        run(self.driver.forget_groups(version))

    def receive_groups(self, groups: HandedGroups) -> None:
        """Install groups that another executor has given, in the calling thread, which must not read connections."""
        run(self.driver.receive_groups(groups))

    def read_state(self, shards: Iterable[int] | None = None, operator: str | None = None) -> pa.Table | None:
        """Return the state of the groups that it owns: if the job has ended during a move, there may be copies, too."""
        owned = self.executor.store.groups or ()
        return super().read_state(owned if shards is None else {*owned}.intersection(shards), operator)

    # what the driver asks for (GroupHost)

    def processor(self, task: int) -> AbstractContextManager[Processor]:
        """Return the logic of a task, which samples traffic."""
        made = self._make_processor(task, self.executor.store, self._sinks)
        made.sample_traffic(self.executor.flows, self.executor.lock, time.perf_counter)
        return closing(made)

    def groups_held(self, version: int) -> None:
        """Report that what arrives for groups to come waits."""
        self._reports.held(self.identity, version)

    def groups_drained(self, version: int) -> None:
        """Report that groups may leave."""
        self._reports.drained(self.identity, version)

    def groups_exchanged(self, version: int) -> None:
        """Report that the executor has given and got all groups of a move."""
        self._reports.exchanged(self.identity, version)

    def copy_of_groups(self, version: int, loses: Mapping[int, int]) -> OutgoingGroups:
        """Begin to copy the state of groups, each for its next executor."""
        return OutgoingGroups(version, loses, self.identity, self.executor.store, clock=time.perf_counter)

    def send_copied(self, executor: int, copied: CopiedGroups) -> None:
        """Send a portion of state to another executor of the operator, and wait until it is installed."""
        self._reports.send_copied(self.identity, executor, copied)

    def send_fence(self, version: int) -> None:
        """Send a fence behind all outputs."""
        self._reports.send_fence(self.identity, version)

    def await_fence(self, version: int) -> None:
        """Wait until the fence has passed everywhere."""
        self._reports.await_fence(self.identity, version)

    def send_groups(self, executor: int, groups: HandedGroups) -> None:
        """Send groups to another executor of the operator."""
        self._reports.send(self.identity, executor, groups)
