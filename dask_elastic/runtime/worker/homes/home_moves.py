"""Moves of homes of one job from and to this node: what the node does and sends, as the protocol's table says.

Notes
-----
Decision 76. The old home drives a move. What it does in a thread of its own, and what it only notes, so that no thread
waits that reads a connection:

- The call of the coordinator switches the upstream instances on all nodes, in order with what the old home sends.
- The thread in which the executor is drained sends the fence, and what is not copied of its state. When the fence has
  come back, it hands the executor over. State goes by calls to the other worker: batches on a channel between nodes
  would wait until it has passed.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from dask_elastic.checkpoint.chain import Chain
from dask_elastic.executor.homes.outgoing_copy import CopiedRows
from dask_elastic.migration.home_move import HomeEvent
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.home_calls import HomeMoved
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.homes.awaited_answers import handing_over
from dask_elastic.runtime.worker.homes.departure import Departure
from dask_elastic.runtime.worker.homes.handover_message import message_of
from dask_elastic.runtime.worker.homes.home_copies import HomeCopies, StateCopy
from dask_elastic.runtime.worker.homes.moving_part import MovingNode, MovingPart
from dask_elastic.vocab.errors import JobEnded, MoveRefused, NodeLost
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.node")


class HomeMoves:
    """The homes of one job that leave this node, and the changes of homes elsewhere.

    Parameters
    ----------
    part : MovingPart
        The job's part here.
    node : MovingNode
        The node.

    Attributes
    ----------
    copies : HomeCopies
        Copies state before executors move.
    """

    def __init__(self, part: MovingPart, node: MovingNode):
        self._part = part
        self._node = node
        self.copies = HomeCopies(part, node)
        self._tier = part.members.tier
        self._lock = threading.Lock()
        self._departures: dict[ExecutorId, Departure] = {}

    @property
    def _here(self) -> int:
        return self._part.members.node

    # what other nodes send

    def switch(self, executor: ExecutorId, table: HomeTable) -> None:
        """Let the instances here send to the homes in a table from now on; called by a thread that reads a channel."""
        part, name = self._part, executor.component
        spec = part.members.spec
        upstream = [one for one in spec.inputs_of(name) if one in part.sources or one in part.homes]
        for origin, mark in self._tier.switch(name, table, upstream):
            part.exchange.send_mark(origin, name, mark)
        if lost := part.members.lost_settled():
            # It was a guest when its connection broke, and is a home now.
            part.fail(NodeLost(f"the channel to {lost[0]} is broken, and {executor} moves there"))

    def fence(self, executor: ExecutorId, source: int, target: int) -> None:
        """Return credit of an executor to its next home from now on, and confirm it to the home before."""
        self._note_fence(executor, source, target)
        spec = self._part.members.spec
        try:
            self._node.peer(spec.nodes[source]).send_fence_passed(spec.generation_id, executor, self._here)
        except NodeLost:
            if self._is_needed(self._here):
                raise

    def _note_fence(self, executor: ExecutorId, source: int, target: int) -> None:
        self._tier.set_emitter(executor, target)
        remote = self._part.remotes.get(executor)
        if remote is not None and remote.home == source:
            # The tasks of the home before have flushed everything; the next home starts its own.
            self._part.end_remote(remote)

    def fence_passed(self, executor: ExecutorId, node: int) -> None:
        """Note that a node has got all outputs of an executor that leaves."""
        if (departure := self._departures.get(executor)) is not None:
            departure.passed(node)

    # the old home

    def begin(self, executor: ExecutorId, table: HomeTable, cores: int) -> Future[HomeMoved]:
        """Begin to move an executor to its home in a table; the result comes at the end of the move.

        Raises
        ------
        MoveRefused
            If it is not at home here, has finished, or a home is moving already; or if the new home is not connected.
        """
        departure = self._registered(executor, table, cores)
        if self._part.threads.ended:
            # What ends the waits may have come before.
            self.abort()
            return departure.result
        try:
            for node in sorted(self._nodes(departure)):
                self._send_switch(node, departure, table)
        except NodeLost as error:
            # Some instances use the new home already.
            self._part.fail(error)
            raise
        return departure.result

    def _registered(self, executor: ExecutorId, table: HomeTable, cores: int) -> Departure:
        home, departure = self._part.homes.get(executor), Departure(executor, self._here, table, cores)
        if home is None:
            raise MoveRefused(f"{executor} is not at home on node {self._here}")
        before = self._tier.tables[executor.component]
        if table.version <= before.version or table.differences(before) != [executor.index]:
            raise MoveRefused(f"{table} does not follow {before} by a move of {executor}")
        self._check_connected(departure.target)
        with self._lock:
            if self._departures:
                raise MoveRefused(f"{next(iter(self._departures))} is moving: one home of a job moves at a time")
            if home.executor.finished:
                raise MoveRefused(f"{executor} has finished: its home does not move any more")
            # From here on the loss of either home ends the job.
            self._tier.moving = frozenset((departure.source, departure.target))
            departure.handle(HomeEvent.STARTED)
            departure.handle(HomeEvent.COPIED)
            departure.handle(HomeEvent.PREPARED)
            self._departures[executor] = departure
        return departure

    def _check_connected(self, node: int) -> None:
        spec = self._part.members.spec
        try:
            self._node.peer(spec.nodes[node])
        except (NodeLost, IndexError) as error:
            raise MoveRefused(f"the new home is not connected: {error}") from error

    def _nodes(self, departure: Departure) -> set[int]:
        """Return the nodes that send to the executor, or get its outputs; and those that may become homes later."""
        members = self._part.members
        return {departure.target, *self._tier.settled, *(node for node, _ in members.spec.members)}

    def _is_needed(self, node: int) -> bool:
        return node in self._tier.settled

    def _send_switch(self, node: int, departure: Departure, table: HomeTable) -> None:
        spec = self._part.members.spec
        if node == self._here:
            self.switch(departure.executor, table)
            return
        try:
            self._node.peer(spec.nodes[node]).send_switch(spec.generation_id, departure.executor, table)
        except NodeLost:
            if self._is_needed(node):
                raise

    def finished(self, executor: ExecutorId) -> None:
        """Note that an executor has finished here: if it was to move, it stays."""
        self.copies.cancel(executor, MoveRefused(f"{executor} has finished: its home does not move any more"))
        with self._lock:
            departure = self._departures.get(executor)
            if departure is None or not departure.cancels(HomeEvent.INPUTS_ENDED):
                return
            del self._departures[executor]
        after = departure.table
        table = HomeTable(after.version + 1, after.moved(executor.index, departure.source).homes)
        for node in sorted(self._nodes(departure)):
            self._send_switch(node, departure, table)
        self._tier.moving = frozenset()
        departure.end(MoveRefused(f"{executor} has finished: its home does not move any more"))

    def depart(self, home: ExecutorThreads) -> None:
        """Hand an executor that is drained over to its next home; called in a thread of its own.

        Raises
        ------
        Aborted
            If the job ends meanwhile, here or at the new home.
        NodeLost
            If a node is lost without which the job cannot go on, or the executor cannot be handed over.
        """
        with handing_over(f"the home of {home.identity} could not be moved"):
            self._hand_over(home)

    def _hand_over(self, home: ExecutorThreads) -> None:
        executor, part = home.identity, self._part
        departure = self._departures[executor]
        departure.handle(HomeEvent.DRAINED)
        # From here on it is refused by name what comes for it.
        del part.homes[executor]
        self._send_fences(departure)
        copy = self.copies.use(executor, home.executor.store, departure.table)
        copy.answers, before = departure.answers, copy.rows.nbytes
        rest = self._send_rest(executor, copy)
        departure.wait_for_fences()
        spec = part.members.spec
        handover = home.driver.handover(copy.rows, copy.rows.portions - bool(rest), rest)
        credit = part.exchange.leave(executor)
        chains: dict[str, Chain | None] = {}
        if part.checkpoints is not None:
            computes = home.executor.store.stores(executor.component)
            chains = {name: part.checkpoints.keeper.left(ExecutorId(name, executor.index)) for name in computes}
        call = message_of(spec.generation_id, executor, *handover, credit, chains, departure.cores)
        cores = departure.answers.of(self._node.call_worker(spec.nodes[departure.target], call))
        departure.handle(HomeEvent.INSTALLED)
        part.stores.remove(executor, home.executor.store)
        moved = HomeMoved(copy.rows.nbytes, copy.rows.nbytes - before, departure.seconds, cores)
        logger.info("job %r: %s has moved to %s: %s", spec.job, executor, spec.nodes[departure.target], moved)
        with self._lock:
            self._tier.moving = frozenset()
            del self._departures[executor]
        part.discard(executor)
        home.executor.task_ended()
        self._node.report_soon()
        departure.end(moved)

    def _send_rest(self, executor: ExecutorId, copy: StateCopy) -> tuple[CopiedRows, ...]:
        """Send what is not copied of the state, which does not change any more; returns the last portion unsent."""
        last: tuple[CopiedRows, ...] = ()
        for portion in copy.rows.rest():
            if last:
                self.copies.send(executor, copy, copy.rows.portions - 2, last)
            last = portion
        return last

    def _send_fences(self, departure: Departure) -> None:
        """Send the fence behind the last output, and await it from the nodes without which the job cannot go on."""
        spec, executor = self._part.members.spec, departure.executor
        nodes = self._nodes(departure) - {self._here}
        departure.fence({self._here, *filter(self._is_needed, nodes)})
        for node in sorted(nodes):
            try:
                peer = self._node.peer(spec.nodes[node])
                peer.send_fence(spec.generation_id, executor, departure.source, departure.target)
            except NodeLost:
                if self._is_needed(node):
                    raise
        # What instances here have got of it was handled when it was delivered.
        self._note_fence(executor, departure.source, departure.target)
        departure.passed(self._here)

    def abort(self) -> None:
        """End every wait: the job has ended here."""
        self.copies.abort(MoveRefused(f"job {self._part.members.spec.job!r} has ended"))
        for departure in list(self._departures.values()):
            departure.abort(JobEnded(f"job {self._part.members.spec.job!r} ended while {departure.executor} moved"))
