"""Shard moves of one executor: carries out the labelled protocol on the routes and the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from dask_elastic.executor.control_records.cuts import Cuts
from dask_elastic.executor.instant_moves import InstantMoves
from dask_elastic.executor.instructions import InstallState, Instruction, RequestFlush, Wake
from dask_elastic.executor.moving.move_choice import MoveChoice
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task import Task
from dask_elastic.executor.task_queue import LabelItem
from dask_elastic.executor.task_status import TaskStatus
from dask_elastic.migration.instant import InstantMove
from dask_elastic.migration.labelled import Action, LabelledMove, MoveEvent, Phase, Route
from dask_elastic.migration.strategy import DISRUPTIVE, INSTANT, LABELLED, MERGING, SMOOTH
from dask_elastic.vocab.errors import MoveRefused, ProtocolError

UNREQUESTED = -1
"""Token of the flush of one shard ahead of its label; no flush request waits for it."""

_LATEST = 20
"""The newest moves, whose pauses are averaged."""


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A finished move: what moved, when it ended, how many seconds its shard was paused, by which strategy and why.

    A smooth move has ended when its target gets the rows of later windows.
    """

    shard: int
    source: int
    target: int
    across_nodes: bool
    ended: float
    pause: float
    strategy: str = LABELLED
    reason: str = ""


class Moves:
    """The shard moves of one executor that have not ended; the caller holds the executor's lock.

    Parameters
    ----------
    routes : Routes
        Table, tasks and queues.
    store : PrimaryState
        The primary copy; only its ownership marks are changed here.
    patience : float
        Seconds for which a move waits until its source is idle; a saturated source never is.
    strategy : str
        How shards move between nodes (decisions 75 and 80). Within a node, after a loss, and while a checkpoint is
        due, they always move by labels. A task that drains keeps no windows: its shards move instantly, not smoothly.
    cuts : Cuts, optional
        The cuts of the state.

    Attributes
    ----------
    by_shard : dict of int to LabelledMove
        The moves, by shard.
    finished, finished_across : int
        Moves that have arrived, recoveries not counted: all of them, and those between nodes.
    choice : MoveChoice
        Chooses their strategies.
    instant : InstantMoves
        The moves that are instant or smooth; not in `by_shard`.
    recent : deque of MoveRecord
        The newest of these, oldest first.
    """

    def __init__(
        self,
        routes: Routes,
        store: PrimaryState,
        patience: float = 0.0,
        strategy: str = "labelled",
        cuts: Cuts | None = None,
    ):
        self.routes = routes
        self.cuts = cuts or Cuts()
        self.store = store
        self.patience = patience
        self.by_shard: dict[int, LabelledMove] = {}
        self.choice = MoveChoice(strategy, routes.shared)
        self._reasons: dict[int, str] = {}
        self.instant = InstantMoves(routes, store)
        self.instant.arrived = self._record_instant
        self.finished = 0
        self.finished_across = 0
        self.recent: deque[MoveRecord] = deque(maxlen=1_000)

    def __contains__(self, shard: int) -> bool:
        return shard in self.by_shard or shard in self.instant

    def __len__(self) -> int:
        return len(self.by_shard) + len(self.instant)

    @property
    def in_progress(self) -> int:
        """How many moves are in progress, without those whose source only waits for its windows to close."""
        return len(self) - self.instant.staying

    @property
    def under_way(self) -> bool:
        """Whether there is any move; asked for each batch."""
        return bool(self.by_shard) or self.instant.under_way

    @property
    def paused(self) -> set[int]:
        """The shards whose routing is paused."""
        paused = {shard for shard, move in self.by_shard.items() if move.paused}
        if self.instant.under_way:
            paused |= {move.shard for move in self.instant.moves if move.is_paused}
        return paused

    @property
    def mean_pause_within(self) -> float:
        """The mean seconds for which recent moves within a node paused their shards; 0 before the first one."""
        latest = list(islice((move for move in reversed(self.recent) if not move.across_nodes), _LATEST))
        return sum(record.pause for record in latest) / len(latest) if latest else 0.0

    def targets(self) -> dict[int, int]:
        """Return the target task of each shard that has a move."""
        instant = {move.shard: move.target for move in self.instant.moves}
        return {shard: move.target for shard, move in self.by_shard.items()} | instant

    def begin(self, shard: int, target: int, now: float) -> list[Instruction]:
        """Move a shard to `target`; does nothing if `target` owns it already.

        Parameters
        ----------
        shard, target : int
            The shard, and the task that shall own it.
        now : float
            The time in seconds.

        Returns
        -------
        list of Instruction
            What the driver carries out.

        Raises
        ------
        MoveRefused
            If the shard has a move already, or `target` cannot take it.

        Notes
        -----
        The label would wait behind the sub-batches in flight, and the shard's tuples behind the label. So the shard is
        paused only when the source is idle or `patience` has passed. A remote source first flushes the shard's dirty
        state and keeps processing the shard meanwhile; the label then brings only what changed since.
        """
        move = self.by_shard.get(shard)
        if shard in self.instant or (move is not None and not move.paused):
            raise MoveRefused(f"shard {shard} is about to move already: wait until it has arrived")
        self.routes.check_move(shard, target)
        source, destination = self.routes.tasks[int(self.routes.table.owner[shard])], self.routes.tasks[target]
        if source is destination:
            return []
        route = Route(source.node == destination.node, destination.at_home)
        if not route.same_node and not self.cuts.under_way:
            chosen = self.choice.choose(shard, self.routes.table.owner, source.number, target, now)
            self._reasons[shard] = chosen.reason
            if chosen.strategy in MERGING:
                smooth = chosen.strategy == SMOOTH and source.status is TaskStatus.ACTIVE
                return self.instant.begin(shard, source, destination, now, smooth)
        move = self.by_shard[shard] = LabelledMove(shard, source.number, target, route, now + self.patience)
        return self._act(move, move.handle(self._first_event(source)), now)

    def stops(self, task: int) -> bool:
        """Whether a task processes nothing, since a disruptive move is under way from it or to it."""
        if self.choice.strategy != DISRUPTIVE or not self.by_shard:
            return False
        return any(
            move.paused and not move.recovers and not move.route.same_node and task in (move.source, move.target)
            for move in self.by_shard.values()
        )

    def _first_event(self, source: Task) -> MoveEvent:
        if self.patience <= 0 or self.choice.strategy == DISRUPTIVE:
            return MoveEvent.DEADLINE_PASSED
        if not source.at_home:
            return MoveEvent.SOURCE_REMOTE
        return MoveEvent.SOURCE_BUSY if source.in_flight else MoveEvent.SOURCE_IDLE

    def flush_arrived(self, shard: int, now: float) -> list[Instruction]:
        """Continue the move of a shard whose dirty state its remote source has flushed."""
        move = self.by_shard.get(shard)
        if move is None:
            return []
        move.handle(MoveEvent.FLUSH_ARRIVED)
        return self.work_done(move.source, now) if move.phase is Phase.WAITING else []

    def work_done(self, task: int, now: float) -> list[Instruction]:
        """Continue the moves that wait for a task, after it has finished a unit of work."""
        instructions = self.instant.work_done(task, now)
        if not self.by_shard:
            return instructions
        idle = not self.routes.tasks[task].in_flight
        ready = [
            move
            for move in self.by_shard.values()
            if move.phase is Phase.WAITING and move.source == task and (idle or now >= move.deadline)
        ]
        for move in ready:
            if self.routes.tasks[move.target].status is not TaskStatus.ACTIVE:
                event = MoveEvent.TARGET_DRAINING
            else:
                event = MoveEvent.SOURCE_IDLE if idle else MoveEvent.DEADLINE_PASSED
            instructions += self._act(move, move.handle(event), now)
        return instructions

    def label_returned(self, task: int, shard: int, now: float) -> list[Instruction]:
        """Continue the move of a shard whose label has returned behind the shard's last output.

        Raises
        ------
        ProtocolError
            If no move of the shard from this task waits for a label.
        """
        continued = self.instant.label_returned(task, shard, now)
        if continued is not None:
            return continued
        move = self.by_shard.get(shard)
        if move is None or move.source != task:
            raise ProtocolError(f"task {task} returned a label of shard {shard}, but the shard has no move from there")
        action = move.handle(MoveEvent.LABEL_RETURNED)
        if self.routes.tasks[task].at_home:
            self.store.revoke(shard)
        return self._act(move, action, now)

    def installed(self, shard: int, task: int, now: float) -> list[Instruction]:
        """Continue the move of a shard that has been sent to its target's node.

        Raises
        ------
        ProtocolError
            If the shard is not being installed at this task.
        """
        if task not in self.routes.tasks:
            # The task was lost meanwhile, and the shard is being installed at another.
            return []
        continued = self.instant.installed(shard, now)
        if continued is not None:
            return continued
        move = self.by_shard.get(shard)
        if move is None or move.target != task:
            raise ProtocolError(f"shard {shard} was installed at task {task}, but it has no move to there")
        return self._act(move, move.handle(MoveEvent.INSTALLED), now)

    # losses

    def orphans(self, lost: Collection[int]) -> set[int]:
        """Return the shards that need another target because their owner or target is lost; all are paused.

        Moves of lost tasks that have not paused their shard are cancelled.
        """
        for move in [m for m in self.by_shard.values() if not m.paused and (m.source in lost or m.target in lost)]:
            move.handle(MoveEvent.SOURCE_LOST if move.source in lost else MoveEvent.TARGET_LOST)
            del self.by_shard[move.shard]
        found = {shard for shard, move in self.by_shard.items() if move.target in lost}
        found |= self.instant.orphans(lost)
        moving = {*self.by_shard, *(move.shard for move in self.instant.moves)}
        for task in sorted(lost):
            for shard in self.routes.table.shards_of(task).tolist():
                if shard not in moving:
                    self.routes.hold(shard)
                    found.add(shard)
        return found

    def inherit(self, heirs: Mapping[int, int], now: float) -> list[Instruction]:
        """Move the shards that `orphans` returned to other tasks, and wait for no label of a lost task.

        Parameters
        ----------
        heirs : mapping of int to int
            A task for each of the shards.
        now : float
            The time in seconds.

        Returns
        -------
        list of Instruction
            What the driver carries out.
        """
        # Some of these end at once, and need no other move.
        moving = {move.shard for move in self.instant.moves}
        instructions = self.instant.inherit(heirs, now)
        for shard in sorted({*heirs} - moving):
            heir = self.routes.tasks[heirs[shard]]
            move = self.by_shard.get(shard)
            if move is None:
                source, route = int(self.routes.table.owner[shard]), Route(False, heir.at_home)
                self.by_shard[shard] = LabelledMove(shard, source, heir.number, route, now)
            else:
                instructions += self._act(move, move.replace_target(heir.number, heir.at_home), now)
        for move in [self.by_shard[shard] for shard in sorted(self.by_shard)]:
            if move.source not in self.routes.tasks and move.phase in (Phase.REQUESTED, Phase.LABELLED):
                action = move.handle(MoveEvent.SOURCE_LOST)
                move.recovers = True
                instructions += self._act(move, action, now)
        return instructions

    # actions

    def _act(self, move: LabelledMove, action: Action, now: float) -> list[Instruction]:
        match action:
            case Action.WAIT:
                return []
            case Action.FLUSH:
                source = self.routes.tasks[move.source]
                return [RequestFlush(source.number, source.node, UNREQUESTED, move.shard)]
            case Action.LABEL:
                return self._pause(move, now)
            case Action.INSTALL | Action.GRANT:
                node = self.routes.tasks[move.target].node
                return [InstallState(move.shard, move.target, node, copy=action is Action.INSTALL)]
            case Action.RESUME:
                return self._resume(move, now)
            case Action.CANCEL:
                del self.by_shard[move.shard]
                return []

    def _pause(self, move: LabelledMove, now: float) -> list[Instruction]:
        source = self.routes.tasks[move.source]
        move.paused_at = now
        self.routes.pause(move.shard)
        if source.at_home and not source.in_flight:
            # Everything that it took is processed and its outputs have left: it would take the label next.
            return self.label_returned(source.number, move.shard, now)
        return _wakes(self.routes.send_label(source, LabelItem(move.shard, move.target, move.route.same_node)))

    def _resume(self, move: LabelledMove, now: float) -> list[Instruction]:
        if self.routes.tasks[move.target].at_home:
            self.store.grant(move.shard, move.target)
        del self.by_shard[move.shard]
        if not move.recovers:
            self._record(move, now)
        wakes = _wakes(self.routes.resume(move.shard, move.target))
        if self.choice.strategy == DISRUPTIVE:
            stopped = [self.routes.tasks.get(task) for task in (move.source, move.target)]
            wakes += _wakes([number for task in stopped if task is not None for number in self.routes.wake(task)])
        return wakes

    def _record(self, move: LabelledMove, now: float) -> None:
        across = not move.route.same_node
        self.finished += 1
        self.finished_across += across
        strategy = DISRUPTIVE if across and self.choice.strategy == DISRUPTIVE else LABELLED
        self._note(move, across, now, strategy)

    def _record_instant(self, move: InstantMove, now: float) -> None:
        self.finished += 1
        self.finished_across += 1
        self._note(move, True, now, SMOOTH if move.smooth else INSTANT)

    def _note(self, move: LabelledMove | InstantMove, across: bool, now: float, strategy: str) -> None:
        pause, reason = now - move.paused_at, self._reasons.pop(move.shard, "")
        if across:
            self.choice.moved(move.shard, pause, strategy not in MERGING)
        self.recent.append(MoveRecord(move.shard, move.source, move.target, across, now, pause, strategy, reason))

    def touches(self, task: int) -> bool:
        """Whether the task is the source or the target of a move."""
        moves: list[LabelledMove | InstantMove] = [*self.by_shard.values(), *self.instant.moves]
        return any(task in (move.source, move.target) for move in moves)


def _wakes(tasks: list[int]) -> list[Instruction]:
    return [Wake(task) for task in tasks]
