"""Shard moves of one executor: the labelled protocol carried out on its routes and its store."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dask_elastic.executor.instructions import InstallState, Instruction, Wake
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task_queue import LabelItem
from dask_elastic.migration.labelled import Action, LabelledMove, MoveEvent, Route
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A finished move: what moved, when it ended, and for how many seconds the shard was paused."""

    shard: int
    source: int
    target: int
    across_nodes: bool
    ended: float
    pause: float


class Moves:
    """The moves in flight; called by who holds the executor's lock.

    Parameters
    ----------
    routes : Routes
        Table, tasks and queues.
    store : KeyedStore
        The primary copy; only its ownership marks are touched here.
    """

    def __init__(self, routes: Routes, store: KeyedStore):
        self.routes = routes
        self.store = store
        self.active: dict[int, LabelledMove] = {}
        self.finished = 0
        self.finished_across = 0
        self.recent: deque[MoveRecord] = deque(maxlen=1_000)

    def begin(self, shard: int, target: int, now: float) -> list[Instruction]:
        """Pause the shard and send the label; nothing to do when `target` has it already."""
        self.routes.check_move(shard, target)
        source = self.routes.tasks[int(self.routes.table.owner[shard])]
        destination = self.routes.tasks[target]
        if source is destination:
            return []
        route = Route(source.node == destination.node, destination.at_home)
        self.active[shard] = LabelledMove(shard, source.number, target, route, now)
        return _wakes(self.routes.pause(shard, LabelItem(shard, target, route.same_node)))

    def label_returned(self, task: int, shard: int, now: float) -> list[Instruction]:
        """Go on with a move whose label came back behind the shard's last output."""
        move = self.active.get(shard)
        if move is None or move.source != task:
            raise ProtocolError(f"a label of shard {shard} came back from task {task}, which no move waits for")
        if self.routes.tasks[task].at_home:
            self.store.revoke(shard)
        return self._act(move, move.handle(MoveEvent.LABEL_RETURNED), now)

    def installed(self, shard: int, now: float) -> list[Instruction]:
        """Go on with a move whose target's node has been sent the shard."""
        move = self.active.get(shard)
        if move is None:
            raise ProtocolError(f"shard {shard} was installed although it does not move")
        return self._act(move, move.handle(MoveEvent.INSTALLED), now)

    def _act(self, move: LabelledMove, action: Action, now: float) -> list[Instruction]:
        target = self.routes.tasks[move.target]
        if action is not Action.RESUME:
            return [InstallState(move.shard, move.target, target.node, copy=action is Action.INSTALL)]
        if target.at_home:
            self.store.grant(move.shard, move.target)
        del self.active[move.shard]
        self._record(move, now)
        return _wakes(self.routes.resume(move.shard, move.target))

    def _record(self, move: LabelledMove, now: float) -> None:
        across = not move.route.same_node
        self.finished += 1
        self.finished_across += across
        self.recent.append(MoveRecord(move.shard, move.source, move.target, across, now, now - move.began))

    def touches(self, task: int) -> bool:
        """Whether a move leaves or heads for the task."""
        return any(task in (move.source, move.target) for move in self.active.values())


def _wakes(tasks: list[int]) -> list[Instruction]:
    return [Wake(task) for task in tasks]
