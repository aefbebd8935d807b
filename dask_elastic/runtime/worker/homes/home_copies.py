"""Copies of the state of executors at home here, which nodes get that may become their homes."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from functools import partial

from dask_elastic.executor.homes.outgoing_copy import CopiedRows, OutgoingCopy
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.migration.copy_rounds import CopyRounds
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.home_calls import CopyState, HomeCopied
from dask_elastic.runtime.worker.homes.awaited_answers import AwaitedAnswers
from dask_elastic.runtime.worker.homes.handover_message import sent_rows
from dask_elastic.runtime.worker.homes.moving_part import MovingNode, MovingPart
from dask_elastic.vocab.errors import MoveRefused
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.node")


class StateCopy:
    """One copy, and what waits for it.

    Parameters
    ----------
    rows : OutgoingCopy
        The copy.

    Attributes
    ----------
    answers : AwaitedAnswers
        Waits for the other node, until the copy is cancelled.
    result : Future of HomeCopied
        The end of the last round; `MoveRefused` if the state cannot be copied.
    """

    def __init__(self, rows: OutgoingCopy):
        self.rows = rows
        self.answers = AwaitedAnswers()
        self.result: Future[HomeCopied] = Future()


class HomeCopies:
    """Copies the state of executors that are about to move, each in a thread of its own.

    Parameters
    ----------
    part : MovingPart
        The job's part here.
    node : MovingNode
        The node.

    Notes
    -----
    Decision 84. Memory is bounded: the next portion is made when the other node has installed the one before.
    """

    def __init__(self, part: MovingPart, node: MovingNode):
        self._part = part
        self._node = node
        self._lock = threading.Lock()
        self._copies: dict[ExecutorId, StateCopy] = {}

    def begin(self, executor: ExecutorId, table: HomeTable) -> Future[HomeCopied]:
        """Begin to copy the state of an executor to its home in a table; the result comes after the last round.

        Raises
        ------
        MoveRefused
            If it is not at home here, or has finished. The result is `MoveRefused` if the other node is lost.
        """
        home = self._part.homes.get(executor)
        if home is None:
            raise MoveRefused(f"{executor} is not at home on node {self._part.members.node}")
        if home.executor.finished:
            raise MoveRefused(f"{executor} has finished: its home does not move any more")
        self.cancel(executor, MoveRefused(f"{executor} is copied for a later move"))
        copy = _new(executor, home.executor.store, table)
        with self._lock:
            self._copies[executor] = copy
        if self._part.threads.ended:
            # What ends the waits may have come before.
            self.abort(MoveRefused(f"{executor} does not move: the job has ended"))
        elif copy.rows.target in self._part.members.left:
            # This node has lost it before the scheduler: a worker that hangs would be awaited for ever.
            self.node_left(copy.rows.target)
        else:
            self._part.threads.start(f"{executor}-copy", partial(self._run, executor, copy))
        return copy.result

    def _run(self, executor: ExecutorId, copy: StateCopy) -> None:
        try:
            copied = self._rounds(executor, copy)
        except Exception as error:  # whatever it is, the executor goes on here
            self.cancel(executor, MoveRefused(f"the state of {executor} cannot be copied: {error}"), copy)
            return
        with self._lock:
            if not copy.result.done():
                copy.result.set_result(copied)

    def _rounds(self, executor: ExecutorId, copy: StateCopy) -> HomeCopied:
        rounds, goes_on = CopyRounds(), True
        while goes_on:
            before = copy.rows.nbytes
            for portion in copy.rows.round():
                self.send(executor, copy, copy.rows.portions - 1, portion)
            goes_on = rounds.goes_on(copy.rows.nbytes - before)
        return HomeCopied(rounds.nbytes, rounds.count)

    def send(self, executor: ExecutorId, copy: StateCopy, position: int, portion: tuple[CopiedRows, ...]) -> None:
        """Send a portion, and return when it is installed.

        Raises
        ------
        Exception
            That of the other node, or of the connection to it; or why the copy was cancelled.
        """
        spec, number = self._part.members.spec, copy.rows.number
        call = CopyState(*spec.generation_id, *executor, number, position, sent_rows(portion))
        copy.answers.of(self._node.call_worker(spec.nodes[copy.rows.target], call))

    def use(self, executor: ExecutorId, store: PrimaryState, table: HomeTable) -> StateCopy:
        """Return the copy of an executor that leaves now for its home in a table; a new one if there is none."""
        with self._lock:
            copy = self._copies.pop(executor, None)
        if copy is not None and copy.rows.number == table.version:
            return copy
        return _new(executor, store, table)

    def cancel(self, executor: ExecutorId, why: MoveRefused, copy: StateCopy | None = None) -> None:
        """End the copy of an executor that stays, whichever or this one; does nothing if there is none."""
        with self._lock:
            found = self._copies.get(executor)
            if found is None or copy not in (None, found):
                return
            del self._copies[executor]
            if not found.result.done():
                found.result.set_exception(why)
        found.answers.end(why)
        if not self._part.threads.ended:
            # Not here: tasks may have to finish what they write, and a thread that reads a connection must not wait.
            self._part.threads.start(f"{executor}-copy-end", found.rows.end)

    def cancelled(self, executor: ExecutorId, version: int) -> None:
        """End the copy for the move with a version, or an earlier one."""
        copy = self._copies.get(executor)
        if copy is not None and copy.rows.number <= version:
            self.cancel(executor, MoveRefused(f"the move of {executor} is cancelled"), copy)

    def node_left(self, node: int) -> None:
        """End the copies to a node that has left."""
        for executor, copy in list(self._copies.items()):
            if copy.rows.target == node:
                self.cancel(executor, MoveRefused(f"{executor} stays: its new home was lost"), copy)

    def abort(self, error: MoveRefused) -> None:
        """End all copies: the job has ended here."""
        for executor in list(self._copies):
            self.cancel(executor, error)


def _new(executor: ExecutorId, store: PrimaryState, table: HomeTable) -> StateCopy:
    target = table.homes[executor.index]
    return StateCopy(OutgoingCopy(table.version, target, executor.component, store, clock=time.perf_counter))
