"""Drives an executor whose home can move: the old home until it has handed the executor over, and the new one.

Notes
-----
Decision 76. An end mark is handled like the barrier of a checkpoint that is newer than all others: what an input sends
before it is processed here, and once all inputs have sent theirs and everything before is settled, the state is not
copied for a checkpoint but handed over. The rules of order, each of which a mutant of the simulator's tests breaks:

- A checkpoint in progress is given up when the first end mark is handled, so that what it holds can pass; the new home
  ignores its barriers.
- From the hand-over on, the old home handles no event. What it is asked to do is passed on to the new home.
- The new home handles nothing of an input before it has everything that the old home has handled of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.drivers.executor_driver import ControlRecord, ExecutorDriver
from dask_elastic.executor.drivers.host import ExecutorHost
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.homes.handover import Handover
from dask_elastic.executor.homes.outgoing_copy import CopiedRows, OutgoingCopy
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.errors import MoveRefused, PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock

DEPARTURE = 2**62
"""In place of a checkpoint's number: the cut at which the executor leaves its home."""


class HomeHost(ExecutorHost, Protocol):
    """What carries out the effects of a `HomeDriver`."""

    def depart(self) -> Any:
        """Hand the executor over, which is drained; see `HomeDriver.handover`."""
        ...

    def pass_on(self, event: events.Event) -> Any:
        """Let the executor handle an event at its new home, unless the event concerns only the old one."""
        ...


class _Departed(Exception):
    """The executor has left this home: nothing is decided here any more."""


class HomeDriver(ExecutorDriver):
    """Runs one elastic executor, until it leaves its home.

    Parameters
    ----------
    executor, host, make_lock
        As for `ExecutorDriver`.

    Attributes
    ----------
    departed : bool
        Whether the executor has left this home: its threads end.
    """

    host: HomeHost

    def __init__(self, executor: ElasticExecutor, host: HomeHost, make_lock: MakeLock = NoLock):
        super().__init__(executor, host, make_lock)
        self.departed = False

    @property
    def is_quiet(self) -> bool:
        """Whether no checkpoint is in progress here, and nothing is held for one."""
        return not self._alignment.is_active

    def handover(self, copy: OutgoingCopy, portions: int, rest: tuple[CopiedRows, ...]) -> tuple[Handover, int, int]:
        """Return what the new home gets; also the newest checkpoint that is over, and the newest change of cores.

        Parameters
        ----------
        copy : OutgoingCopy
            The copy of the state.
        portions : int
            How many of its portions were sent.
        rest : tuple of CopiedRows
            The last portion, see `Handover`.
        """
        given = Handover.of(self.executor, copy.number, portions, rest)
        return given, self._alignment.over, self._newest_change

    def resume(self, over: int, newest_change: int) -> Steps[None]:
        """Start the first tasks of an executor that has what another home has handed over.

        Parameters
        ----------
        over, newest_change : int
            As `handover` has returned them.
        """
        self._alignment.passed(over)
        self._newest_change = newest_change
        yield from self.start()
        # One that was due at the old home may not have been sent.
        yield from self._exclusively(self._watermark_due)

    def _watermark_due(self) -> list[do.Instruction]:
        with self.executor.lock:
            return self.executor.watermarks.due()

    def handle(self, event: events.Event) -> Steps[None]:
        """Let the executor handle an event; if it has left, this is done at the new home, or refused.

        Raises
        ------
        PlanningError, MoveRefused
            As `ElasticExecutor.handle`; also for a change of cores or a move of a shard if the executor has left.
        """
        try:
            yield from super().handle(event)
        except _Departed:
            error = f"{self.identity} has moved to another worker: repeat the command there"
            match event:
                case events.SetCores() | events.ChangeSharing():
                    raise PlanningError(error) from None
                case events.MoveShard():
                    raise MoveRefused(error) from None
                case events.FlushDue():
                    yield partial(self.host.pass_on, event)

    def abandon_checkpoint(self, checkpoint: int) -> Steps[None]:
        """Give up a checkpoint, here or at the new home."""
        try:
            yield from super().abandon_checkpoint(checkpoint)
        except _Departed:
            yield partial(self.host.pass_on, events.CheckpointAbandoned(checkpoint))

    def _handle_record(self, origin: ExecutorId, record: ControlRecord) -> Steps[None]:
        if isinstance(record, events.EndMark):
            yield from self._begin(DEPARTURE)
            yield from self._aligned(self._alignment.barrier(Barrier(origin, DEPARTURE)))
        else:
            yield from super()._handle_record(origin, record)

    def _run_cut(self, checkpoint: int) -> Steps[None]:
        if checkpoint != DEPARTURE:
            yield from super()._run_cut(checkpoint)
            return
        yield self._control.acquire
        # Not under the lock from here on: threads that read connections may wait for it.
        self.departed = True
        self._control.release()
        self.wake_all()
        yield self.host.depart

    def _exclusively(self, decide: Callable[[], list[do.Instruction]]) -> Steps[None]:
        yield from super()._exclusively(partial(self._decided, decide))

    def _decided(self, decide: Callable[[], list[do.Instruction]]) -> list[do.Instruction]:
        if self.departed:
            raise _Departed
        return decide()

    def _settle(self, instructions: list[do.Instruction]) -> Steps[None]:
        try:
            yield from super()._settle(instructions)
        except _Departed:
            # Another thread has settled the last row, and this one is late. The flush it may have completed is no
            # longer known to the executor, which has handed over only those that were open.
            kept = [i for i in instructions if isinstance(i, do.Wake | do.Release | do.FlushComplete)]
            yield from self._carry_out(kept)

    def _take_back(self, message: m.Done | m.Flush | m.LabelReturned) -> Steps[None]:
        try:
            yield from super()._take_back(message)
        except _Departed:
            # All that the task has done is in the state that was handed over.
            return
