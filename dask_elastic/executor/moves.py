"""Shard moves of one executor: the labelled protocol carried out on its routes and its store."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from dask_elastic.executor.instructions import InstallState, Instruction, RequestFlush, Wake
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task_queue import LabelItem
from dask_elastic.migration.labelled import Action, LabelledMove, MoveEvent, Phase, Route
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.errors import MoveRefused, ProtocolError

UNREQUESTED = -1
"""Token of a flush that no request waits for."""


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A finished move: what moved, when it ended, and for how many seconds the shard was paused."""

    shard: int
    source: int
    target: int
    across_nodes: bool
    ended: float
    pause: float


@dataclass(frozen=True, slots=True)
class DeferredMove:
    """A move that begins when its source has finished its work, or at the deadline.

    One from a remote task begins when what changed in the shard has been brought home `ahead` of its label.
    """

    source: int
    target: int
    deadline: float
    ahead: bool = True


class Moves:
    """The moves in flight; called by who holds the executor's lock.

    Parameters
    ----------
    routes : Routes
        Table, tasks and queues.
    store : KeyedStore
        The primary copy; only its ownership marks are touched here.
    patience : float
        Seconds for which a move waits until its source has nothing under way; a saturated source always has.
    """

    def __init__(self, routes: Routes, store: KeyedStore, patience: float = 0.0):
        self.routes = routes
        self.store = store
        self.patience = patience
        self.active: dict[int, LabelledMove] = {}
        self.deferred: dict[int, DeferredMove] = {}
        self.finished = 0
        self.finished_across = 0
        self.recent: deque[MoveRecord] = deque(maxlen=1_000)

    def __contains__(self, shard: int) -> bool:
        return shard in self.active or shard in self.deferred

    def __len__(self) -> int:
        return len(self.active) + len(self.deferred)

    def targets(self) -> dict[int, int]:
        """Return where each shard that moves, or is about to, is going."""
        under_way = {shard: move.target for shard, move in self.active.items()}
        return under_way | {shard: move.target for shard, move in self.deferred.items()}

    def begin(self, shard: int, target: int, now: float) -> list[Instruction]:
        """Move a shard; nothing to do when `target` has it already.

        Notes
        -----
        While the source is busy the label would only wait behind its work, and the shard's tuples with it. So the
        shard is paused when the source has finished what it has, or when its patience ends. A remote source first
        brings the shard's state home while it goes on; the label then brings only what has changed since.
        """
        if shard in self.deferred:
            raise MoveRefused(f"shard {shard} is about to move already: wait until it has arrived")
        self.routes.check_move(shard, target)
        source = self.routes.tasks[int(self.routes.table.owner[shard])]
        if source.number == target:
            return []
        if self.patience > 0 and not source.at_home:
            self.deferred[shard] = DeferredMove(source.number, target, now + self.patience, ahead=False)
            return [RequestFlush(source.number, source.node, UNREQUESTED, shard)]
        if self.patience > 0 and source.in_flight:
            self.deferred[shard] = DeferredMove(source.number, target, now + self.patience)
            return []
        return self._pause(shard, target, now)

    def brought_ahead(self, shard: int, now: float) -> list[Instruction]:
        """Go on with a move whose shard's state has been brought home ahead of the label."""
        move = self.deferred.get(shard)
        if move is None:
            return []
        self.deferred[shard] = replace(move, ahead=True)
        return self.work_done(move.source, now)

    def work_done(self, task: int, now: float) -> list[Instruction]:
        """Begin what waited for a task to finish its work."""
        if not self.deferred:
            return []
        idle = not self.routes.tasks[task].in_flight
        ready = [
            shard
            for shard, move in self.deferred.items()
            if move.source == task and move.ahead and (idle or now >= move.deadline)
        ]
        instructions: list[Instruction] = []
        for shard in ready:
            target = self.routes.tasks.get(self.deferred.pop(shard).target)
            if target is not None and not target.draining:
                instructions += self._pause(shard, target.number, now)
        return instructions

    def _pause(self, shard: int, target: int, now: float) -> list[Instruction]:
        source = self.routes.tasks[int(self.routes.table.owner[shard])]
        destination = self.routes.tasks[target]
        route = Route(source.node == destination.node, destination.at_home)
        self.active[shard] = LabelledMove(shard, source.number, target, route, now)
        self.routes.pause(shard)
        if source.at_home and not source.in_flight:
            # Whatever it took is processed and its outputs have left: a label would be the next that it takes.
            return self.label_returned(source.number, shard, now)
        return _wakes(self.routes.send_label(source, LabelItem(shard, target, route.same_node)))

    def label_returned(self, task: int, shard: int, now: float) -> list[Instruction]:
        """Go on with a move whose label came back behind the shard's last output."""
        move = self.active.get(shard)
        if move is None or move.source != task:
            raise ProtocolError(f"a label of shard {shard} came back from task {task}, which no move waits for")
        if self.routes.tasks[task].at_home:
            self.store.revoke(shard)
        return self._act(move, move.handle(MoveEvent.LABEL_RETURNED), now)

    def installed(self, shard: int, task: int, now: float) -> list[Instruction]:
        """Go on with a move whose target's node has been sent the shard."""
        if task not in self.routes.tasks:
            # The task was lost meanwhile, and the shard is being installed at another.
            return []
        move = self.active.get(shard)
        if move is None or move.target != task:
            raise ProtocolError(f"shard {shard} was installed at task {task}, to which it does not move")
        return self._act(move, move.handle(MoveEvent.INSTALLED), now)

    # losses

    def orphans(self, lost: Collection[int]) -> set[int]:
        """Return the shards that need another target, since lost tasks owned them or were about to; all are paused."""
        for shard in [s for s, move in self.deferred.items() if move.source in lost or move.target in lost]:
            del self.deferred[shard]
        found = {shard for shard, move in self.active.items() if move.target in lost}
        for task in sorted(lost):
            for shard in self.routes.table.shards_of(task).tolist():
                if shard not in self.active:
                    self.routes.orphan(shard)
                    found.add(shard)
        return found

    def inherit(self, heirs: Mapping[int, int], now: float) -> list[Instruction]:
        """Let the shards that `orphans` returned go to their heirs, and expect no label of a task that is lost.

        Parameters
        ----------
        heirs : mapping of int to int
            A task for each of the shards.
        now : float
            The time.
        """
        instructions: list[Instruction] = []
        for shard in sorted(heirs):
            heir = self.routes.tasks[heirs[shard]]
            move = self.active.get(shard)
            if move is None:
                source, route = int(self.routes.table.owner[shard]), Route(False, heir.at_home)
                self.active[shard] = LabelledMove(shard, source, heir.number, route, now)
            else:
                instructions += self._act(move, move.replace_target(heir.number, heir.at_home), now)
        for move in [self.active[shard] for shard in sorted(self.active)]:
            if move.source not in self.routes.tasks and move.phase is Phase.LABELLED:
                move.recovers = True
                instructions += self._act(move, move.handle(MoveEvent.SOURCE_LOST), now)
        return instructions

    def _act(self, move: LabelledMove, action: Action, now: float) -> list[Instruction]:
        if action is Action.WAIT:
            return []
        target = self.routes.tasks[move.target]
        if action is not Action.RESUME:
            return [InstallState(move.shard, move.target, target.node, copy=action is Action.INSTALL)]
        if target.at_home:
            self.store.grant(move.shard, move.target)
        del self.active[move.shard]
        if not move.recovers:
            self._record(move, now)
        return _wakes(self.routes.resume(move.shard, move.target))

    def _record(self, move: LabelledMove, now: float) -> None:
        across = not move.route.same_node
        self.finished += 1
        self.finished_across += across
        self.recent.append(MoveRecord(move.shard, move.source, move.target, across, now, now - move.began))

    def touches(self, task: int) -> bool:
        """Return whether a move leaves or heads for the task."""
        moves: list[LabelledMove | DeferredMove] = [*self.active.values(), *self.deferred.values()]
        return any(task in (move.source, move.target) for move in moves)


def _wakes(tasks: list[int]) -> list[Instruction]:
    return [Wake(task) for task in tasks]
