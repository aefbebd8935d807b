"""Moves of key groups of one job, as one of its nodes carries them out: what the coordinator asks, and the fences.

Notes
-----
Decisions 86, 89 and 99. The coordinator asks all nodes; see `dask_elastic.runtime.protocol.group_calls`. Between two
nodes travel, on the channel that carries rows, end marks and fences; state goes by calls, beside the rows. Memory for
copied state is bounded: the next portion is made when the other executor has installed the one before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from dask_elastic.executor import events
from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.runtime.protocol.group_calls import (
    CopyGroups,
    ForgetGroups,
    GiveGroups,
    GroupsMoved,
    HoldGroups,
    InstallCopied,
    InstallGroups,
    ResumeGroups,
    SwitchGroups,
)
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.groups.group_exchange import GroupExchange
from dask_elastic.runtime.worker.groups.group_message import copied_message, copied_of, handed_of, message_of
from dask_elastic.runtime.worker.groups.group_threads import GroupThreads
from dask_elastic.runtime.worker.groups.local_move import LocalMove, Share
from dask_elastic.runtime.worker.homes.awaited_answers import AwaitedAnswers, handing_over
from dask_elastic.runtime.worker.homes.moving_part import MovingNode, MovingPart
from dask_elastic.vocab.errors import JobEnded, MoveRefused, ProtocolError
from dask_elastic.vocab.identity import ExecutorId


class GroupMoves:
    """The key groups of one job that move from and to executors on this node, one set of groups at a time.

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
        self._tier = part.members.tier
        self._lock = threading.Lock()
        self._move: LocalMove | None = None
        self._answers: dict[ExecutorId, AwaitedAnswers] = {}
        # The newest version of each operator to which a move was cancelled: calls may overtake each other.
        self._over: dict[str, int] = {}

    @property
    def _here(self) -> int:
        return self._part.members.node

    # what the coordinator asks

    def copy(self, call: CopyGroups) -> Future[GroupsMoved]:
        """Have the executors here copy the state of groups that they are to give; the result comes when all have.

        Raises
        ------
        MoveRefused
            If groups do not move here. The result is `MoveRefused` if the state cannot be copied.
        """
        move = self._begin(call, drains=False)
        waited = move.wait_for_copied()
        for executor, share in move.shares.items():
            if share.loses:
                home = self._home(executor)
                self._part.threads.start(f"{executor}-copies", partial(self._copy, move, home, share))
        if self._part.threads.ended:
            # What ends the waits may have come before.
            self.abort()
        return waited

    @staticmethod
    def _copy(move: LocalMove, home: GroupThreads, share: Share) -> None:
        try:
            home.copy_groups(move.version, share.loses)
        except Exception as error:  # whatever it is, the groups stay
            move.abort(MoveRefused(f"the state of groups of {home.identity} cannot be copied: {error}"))
        else:
            move.copied(home.identity)

    def _begin(self, call: CopyGroups | HoldGroups, drains: bool) -> LocalMove:
        """Note a move, in which all executors of the operator here take part if they are drained.

        Raises
        ------
        MoveRefused
            If it was cancelled.
        """
        table = self._table(call.operator)
        table.check(call.executors)
        shares = {home.identity: self._share(table, call, home.identity.index) for home in self._homes(call.operator)}
        if not drains:
            shares = {executor: share for executor, share in shares.items() if share.gains or share.loses}
        move = LocalMove(call.operator, call.version, drains, shares)
        with self._lock:
            if call.version <= self._over.get(call.operator, -1):
                raise MoveRefused(f"the move of groups of {call.operator!r} to version {call.version} is cancelled")
            self._move = move
        return move

    def hold(self, call: HoldGroups) -> Future[GroupsMoved]:
        """Have the executors here hold what arrives for the groups that they gain; the result comes when they do.

        Raises
        ------
        MoveRefused
            If groups do not move here, or an executor cannot take part; others may hold groups until `forget`.
        """
        self._table(call.operator)
        # A move that copies state has begun before.
        move = self._begin(call, True) if call.drains else self._current(call.operator, call.version)
        waited = move.wait_for_held()
        for executor, (gains, loses) in move.shares.items():
            self._home(executor).handle(events.HoldGroups(call.version, gains, loses, call.drains))
        return waited

    @staticmethod
    def _share(table: GroupTable, call: CopyGroups | HoldGroups, executor: int) -> Share:
        gains = tuple(group for group, to in call.executors.items() if to == executor)
        return Share(gains, {group: to for group, to in call.executors.items() if table.owners[group] == executor})

    def switch(self, call: SwitchGroups) -> Future[GroupsMoved]:
        """Have the instances here use the next table; the result comes when the executors here have done their part."""
        move = self._current(call.operator, call.version)
        waited = move.wait_for_drained() if call.pauses else move.wait_for_exchanged()
        table = self._table(call.operator).moved(call.executors, mark_all=call.pauses, version=call.version)
        if call.pauses:
            self._exchange.pause()
        with self._guarded():
            for origin, mark in self._tier.switch_groups(call.operator, table, self._upstream(call), call.pauses):
                self._part.exchange.send_mark(origin, call.operator, mark)
            for executor in move.shares:
                self._home(executor).handle(events.MarksDue(call.version))
        return waited

    def give(self, call: GiveGroups) -> Future[GroupsMoved]:
        """Have the executors here give their groups; the result comes when they have got theirs as well."""
        move = self._current(call.operator, call.version)
        waited = move.wait_for_exchanged()
        for executor in move.shares:
            self._home(executor).give(call.version)
        return waited

    def resume(self, call: ResumeGroups) -> GroupsMoved:
        """Have the instances here send batches again."""
        move = self._current(call.operator, call.version)
        self._tier.resume(call.operator, self._upstream(call))
        self._exchange.resume()
        return GroupsMoved(0, move.seconds, 0)

    def forget(self, call: ForgetGroups) -> None:
        """End a move that was cancelled; a call that comes late leaves the next move alone."""
        error = MoveRefused(f"the move of groups of {call.operator!r} to version {call.version} is cancelled")
        with self._lock:
            self._over[call.operator] = max(call.version, self._over.get(call.operator, -1))
            move, copying = self._move, list(self._answers.values())
            if move is not None and (move.operator, move.version) != (call.operator, call.version):
                move, copying = None, []
            else:
                self._move = None
        for one in copying:
            one.end(error)
        if move is not None:
            move.abort(error)
        # Portions of state may come where the move itself has not been heard of.
        for home in self._homes(call.operator):
            with self._guarded():
                home.forget_groups(call.version)

    def install_copied(self, call: InstallCopied) -> None:
        """Install a portion of the state of groups that may come from an executor of another node.

        Raises
        ------
        MoveRefused
            If the move was cancelled.
        StateMemoryExceeded
            If there is no memory for it.
        """
        self._home(ExecutorId(call.operator, call.executor)).receive_copied(copied_of(call))

    def install(self, call: InstallGroups) -> None:
        """Install groups that an executor of another node gives."""
        self._install(ExecutorId(call.operator, call.executor), handed_of(call))

    def _install(self, executor: ExecutorId, handed: HandedGroups) -> None:
        move = self._current(executor.component, handed.version)
        move.got(handed.nbytes)
        with self._guarded(), handing_over(f"key groups could not be moved to {executor}"):
            self._home(executor).receive_groups(handed)

    # what executors report (GroupReports)

    def held(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor holds what arrives for the groups that it is to get, unless the move is cancelled."""
        with self._lock:
            move = self._move
        if move is not None and move.version == version:
            move.held(executor)

    def drained(self, executor: ExecutorId, version: int) -> None:
        """Note that groups of an executor may leave; they do at once if only its own rows had to be processed."""
        move = self._current(executor.component, version)
        if move.drains:
            move.drained(executor)
        else:
            self._home(executor).give(version)

    def exchanged(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor has given and got all groups of a move."""
        self._current(executor.component, version).exchanged(executor)

    def send_copied(self, source: ExecutorId, target: int, copied: CopiedGroups) -> None:
        """Send a portion of state to another executor of the operator, and wait until it is installed.

        Raises
        ------
        Exception
            That of the other node, or of the connection to it; or why it must not wait any more.
        """
        if self._part.threads.ended:
            # Nothing else ends the copy for an executor here.
            raise Aborted
        executor = ExecutorId(source.component, target)
        node = self._tier.node_of(executor)
        if node == self._here:
            self._home(executor).receive_copied(copied)
        else:
            spec = self._part.members.spec
            with self._awaited(source) as answers:
                message = copied_message(spec.generation_id, executor, copied)
                answers.of(self._node.call_worker(spec.nodes[node], message))
        # Counted where it is sent: the other node may not know of the move yet.
        self._current(source.component, copied.version).sent(copied.nbytes)

    def send(self, source: ExecutorId, target: int, groups: HandedGroups) -> None:
        """Send groups to another executor of the operator.

        Raises
        ------
        Aborted
            If the job ends meanwhile.
        NodeLost
            If the node of that executor is lost.
        """
        executor = ExecutorId(source.component, target)
        node = self._tier.node_of(executor)
        if node == self._here:
            self._install(executor, groups)
            return
        spec = self._part.members.spec
        with self._awaited(source) as answers:
            answers.of(self._node.call_worker(spec.nodes[node], message_of(spec.generation_id, executor, groups)))

    @contextmanager
    def _awaited(self, executor: ExecutorId) -> Iterator[AwaitedAnswers]:
        """Wait for an answer in the block, until the job ends."""
        with self._lock:
            answers = self._answers[executor] = AwaitedAnswers()
        if self._part.threads.ended:
            answers.end(Aborted())
        try:
            yield answers
        finally:
            with self._lock:
                # A copy that was cancelled may end when that of the next move waits.
                if self._answers.get(executor) is answers:
                    del self._answers[executor]

    # fences

    def send_fence(self, executor: ExecutorId, version: int) -> None:
        """Send a fence behind the outputs of an executor here, to all other nodes.

        Raises
        ------
        NodeLost
            If a node is lost that gets outputs.
        """
        spec = self._part.members.spec
        nodes = self._tier.settled - {self._here}
        self._current(executor.component, version).fence(executor, nodes)
        for node in sorted(nodes):
            self._node.peer(spec.nodes[node]).send_group_fence(spec.generation_id, executor, version)

    def await_fence(self, executor: ExecutorId, version: int) -> None:
        """Wait until the fence of an executor here has passed at all other nodes.

        Raises
        ------
        Aborted
            If the job ends meanwhile.
        """
        self._current(executor.component, version).await_fence(executor)
        if self._part.threads.ended:
            raise Aborted

    def pass_fence(self, executor: ExecutorId, version: int) -> None:
        """Confirm the fence of an executor of another node, all of whose outputs before it are handled here."""
        spec = self._part.members.spec
        peer = self._node.peer(spec.nodes[self._tier.node_of(executor)])
        peer.send_group_fence_passed(spec.generation_id, executor, version, self._here)

    def fence_passed(self, executor: ExecutorId, version: int, node: int) -> None:
        """Note that a node has got all outputs of an executor here."""
        self._current(executor.component, version).fence_passed(executor, node)

    def abort(self) -> None:
        """End every wait: the job has ended here."""
        with self._lock:
            move, answers = self._move, list(self._answers.values())
        for one in answers:
            one.end(Aborted())
        if move is not None:
            job = self._part.members.spec.job
            move.abort(JobEnded(f"job {job!r} ended while groups of {move.operator!r} moved"))

    # the parts

    @property
    def _exchange(self) -> GroupExchange:
        exchange = self._part.exchange
        assert isinstance(exchange, GroupExchange), "the job's key groups move"
        return exchange

    def _table(self, operator: str) -> GroupTable:
        table = self._tier.groups_of(operator)
        if table is None:
            raise MoveRefused(f"the key groups of {operator!r} do not move")
        return table

    def _current(self, operator: str, version: int) -> LocalMove:
        with self._lock:
            move = self._move
        if move is None or (move.operator, move.version) != (operator, version):
            raise ProtocolError(f"node {self._here} takes no part in a move of groups of {operator!r} to {version}")
        return move

    def _homes(self, operator: str) -> list[GroupThreads]:
        found = [home for identity, home in sorted(self._part.homes.items()) if identity.component == operator]
        return [home for home in found if isinstance(home, GroupThreads)]

    def _home(self, executor: ExecutorId) -> GroupThreads:
        home = self._part.homes[executor]
        assert isinstance(home, GroupThreads), f"the key groups of {executor} move"
        return home

    def _upstream(self, call: SwitchGroups | ResumeGroups) -> list[ExecutorId]:
        part = self._part
        upstream = part.members.spec.inputs_of(call.operator)
        return [one for one in upstream if one in part.sources or one in part.homes]

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """End the job by an error in the block: some instances may have switched, or tasks been run.

        Raises
        ------
        JobEnded
            In place of the error, which this worker reports.
        """
        ended = JobEnded(f"job {self._part.members.spec.job!r} has ended on this worker")
        try:
            yield
        except Aborted:
            raise ended from None
        except Exception as error:  # becomes the job's error, as in the task's own thread
            self._part.fail(error)
            raise ended from error
