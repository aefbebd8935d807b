"""Homes of one job that move to this node."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial

from dask_elastic.executor.homes.arrival import Arrival
from dask_elastic.executor.homes.handover import Handover
from dask_elastic.executor.homes.incoming_copy import IncomingCopy
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.home_calls import CopyState, InstallHome
from dask_elastic.runtime.worker.exchange import HomeInstance
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.homes.handover_message import copied_rows, handover_of
from dask_elastic.runtime.worker.homes.moving_part import MovingNode, MovingPart
from dask_elastic.vocab.errors import MoveRefused
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.node")


class Arrivals:
    """The executors of one job whose home this node becomes.

    Parameters
    ----------
    part : MovingPart
        The job's part here.
    node : MovingNode
        The node.
    """

    def __init__(self, part: MovingPart, node: MovingNode):
        self._part = part
        self._node = node
        self._lock = threading.Lock()
        self._awaited: set[ExecutorId] = set()
        self._copies: dict[ExecutorId, IncomingCopy] = {}
        # The versions of the newest moves that are over: cancelled, or replaced by later ones.
        self._over: dict[ExecutorId, int] = {}

    def copy(self, call: CopyState) -> None:
        """Install a portion of the state of an executor that may come; the first one of a copy replaces earlier copies.

        Raises
        ------
        MoveRefused
            If the copy was cancelled or replaced by a later one, or the executor is at home here.
        ProtocolError
            If it does not follow the portion before.
        StateMemoryExceeded
            If there is no memory for it.
        """
        part, executor = self._part, ExecutorId(call.operator, call.executor)
        with self._lock:
            if executor in part.homes or call.number <= self._over.get(executor, -1):
                raise MoveRefused(f"copy {call.number} of {executor} is of no use on node {part.members.node}")
            copy = self._copies.get(executor)
            if call.position == 0 and (copy is None or copy.number < call.number):
                copy = self._begin(executor, call.number)
        if copy is None:
            raise MoveRefused(f"node {part.members.node} has no copy of {executor} that could be continued")
        copy.install(call.number, call.position, copied_rows(call.portion))

    def _begin(self, executor: ExecutorId, number: int) -> IncomingCopy:
        self._drop(executor)
        # Whatever comes late of an earlier copy, whose cancellation may have been lost.
        self._end_copies(executor, number - 1)
        store = self._part.factory.store(executor)
        self._part.stores.expect(executor, store)
        copy = self._copies[executor] = IncomingCopy(number, executor.component, store)
        return copy

    def _end_copies(self, executor: ExecutorId, newest: int) -> None:
        self._over[executor] = max(newest, self._over.get(executor, -1))

    def _drop(self, executor: ExecutorId) -> None:
        if self._copies.pop(executor, None) is not None:
            self._part.stores.forget(executor)

    def prepare(self, executor: ExecutorId, tables: Mapping[str, HomeTable]) -> None:
        """Hold what arrives for an executor from now on.

        Parameters
        ----------
        executor : ExecutorId
            The executor.
        tables : mapping of str to HomeTable
            Where the executors of each operator are.

        Raises
        ------
        MoveRefused
            If it is at home here, or awaited already; or if the move was cancelled: calls may overtake each other.
        NodeLost
            If this node has lost another one without which the job cannot go on.
        """
        part, tier = self._part, self._part.members.tier
        with self._lock:
            if executor in part.homes or executor in self._awaited:
                raise MoveRefused(f"{executor} is at home on node {part.members.node} already, or about to be")
            if tables[executor.component].version < self._over.get(executor, -1):
                raise MoveRefused(f"the move of {executor} to node {part.members.node} is cancelled")
            tier.adopt(tables)
            spec = part.members.spec
            for node in tier.settled - {part.members.node}:
                self._node.peer(spec.nodes[node])
            self._awaited.add(executor)
            part.exchange.expect(executor)
            part.exchange.arrivals[executor] = Arrival(threading.Lock)
        part.expect(executor)
        if part.checkpoints is not None:
            part.checkpoints.keeper.start()
        # The answer to the report is the lease, without which the executor emits nothing.
        self._node.report_soon()

    def cancel(self, executor: ExecutorId, version: int) -> None:
        """Await an executor no longer, which stays where it is; nothing was sent to it here, except its state.

        Parameters
        ----------
        executor : ExecutorId
            The executor.
        version : int
            The version of the table of the move: copies for it, or for earlier ones, are dropped.
        """
        with self._lock:
            self._end_copies(executor, version)
            copy = self._copies.get(executor)
            if copy is not None and copy.number <= version:
                self._drop(executor)
            if executor not in self._awaited:
                return
            self._awaited.discard(executor)
            self._part.exchange.arrivals.pop(executor, None)
        self._part.discard(executor)

    def install(self, call: InstallHome) -> dict[int, int]:
        """Continue an executor that its home before has handed over; returns its cores by node.

        Raises
        ------
        MoveRefused
            If it is not awaited here.
        """
        part, executor = self._part, ExecutorId(call.operator, call.executor)
        with self._lock:
            if executor not in self._awaited:
                raise MoveRefused(f"node {part.members.node} does not await {executor}")
            self._awaited.discard(executor)
        home = self._continued(executor, call)
        part.add_home(home)
        if part.checkpoints is not None:
            # What was given up while the executor was on its way, as a later one was not begun.
            home.abandon_checkpoint(part.checkpoints.given_up)
        arrival = part.exchange.arrivals[executor]
        part.threads.start(f"{executor}-arrival", partial(self._release, home, arrival))
        with home.executor.lock:
            return home.executor.cores.by_node()

    def _continued(self, identity: ExecutorId, call: InstallHome) -> ExecutorThreads:
        part = self._part
        handover, here = handover_of(call), part.members.node
        first = {here: max(1, call.cores)}
        executor = part.factory.executor(identity, first, self._state(identity, handover))
        handover.install(executor)
        home = part.factory.home(executor)
        if part.checkpoints is not None:
            executor.store.track_dirty = True
            for compute in executor.store.stores(identity.component):
                part.checkpoints.keeper.arrived(ExecutorId(compute, identity.index), call.chains.get(compute))
        part.exchange.arrive(identity, call.credit)
        part.members.tier.restart(identity)
        home.resume(call.over, call.newest_change)
        return home

    def _state(self, executor: ExecutorId, handover: Handover) -> PrimaryState:
        with self._lock:
            copy = self._copies.get(executor)
            if copy is None or copy.number != handover.copy:
                copy = self._begin(executor, handover.copy)
        state = handover.state(copy)
        with self._lock:
            self._drop(executor)
        return state

    def _release(self, home: ExecutorThreads, arrival: Arrival[Callable[[HomeInstance], None]]) -> None:
        """Let the executor handle what was held; each item may run tasks, so in a thread of its own."""
        for act in arrival.released():
            act(home)
        arrivals = self._part.exchange.arrivals
        # It may have left, and be about to come back.
        with self._lock:
            if arrivals.get(home.identity) is arrival:
                del arrivals[home.identity]
