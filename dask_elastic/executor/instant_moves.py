"""Instant shard moves of one executor: carries out their protocol on the routes, the store and the partials."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

import pyarrow as pa

from dask_elastic.executor.instructions import InstallState, Instruction, OpenShard, SetAside, Wake
from dask_elastic.executor.moving.handed_over import HandedOver
from dask_elastic.executor.moving.handed_state import HandedState
from dask_elastic.executor.moving.merging import Merging
from dask_elastic.executor.moving.shared_shards import SharedShard, mixed
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.routes import Routes, closes
from dask_elastic.executor.task import Task
from dask_elastic.executor.task_queue import LabelItem
from dask_elastic.executor.task_status import TaskStatus
from dask_elastic.migration.instant import InstantAction, InstantEvent, InstantMove, InstantPhase
from dask_elastic.state.codec import IDENTITY
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.windows.latest_begin import latest_begin
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.state_record import TimersDue

_BEFORE = frozenset({InstantPhase.REQUESTED, InstantPhase.WAITING})
"""The phases in which the shard is not affected yet."""


class InstantMoves:
    """The instant moves of one executor that have not ended; the caller holds the executor's lock.

    Parameters
    ----------
    routes : Routes
        Table, tasks and queues.
    store : PrimaryState
        The primary copy.

    Attributes
    ----------
    merging : Merging
        The partials that targets have begun to merge.
    arrived : callable
        Gets a move, and the time, when its target has all rows.
    is_last : bool
        Whether the record at the end of the input has been entered.
    opened : callable
        Called before the state of a shard is set aside: flushes that are under way would lack it.
    """

    def __init__(self, routes: Routes, store: PrimaryState):
        self.routes = routes
        self.store = store
        self.merging = Merging()
        self.arrived: Callable[[InstantMove, float], None]
        self._by_shard: dict[int, HandedOver] = {}
        # Shards whose primary copy is to be set aside, one after the other.
        self._setting_aside: deque[int] = deque()
        self.opened: Callable[[], None] = lambda: None
        self.is_last = False

    def __contains__(self, shard: int) -> bool:
        return shard in self._by_shard or shard in self.merging

    def __len__(self) -> int:
        return len(self._by_shard) + len(self.merging)

    @property
    def under_way(self) -> bool:
        """Whether there is any move, or partials that are on their way."""
        return bool(self._by_shard or self.merging)

    @property
    def moves(self) -> list[InstantMove]:
        """The moves whose partials are not on their way."""
        return [handed.move for handed in self._by_shard.values()]

    @property
    def has_partials(self) -> bool:
        """Whether any partials are neither in the primary copy nor with a task."""
        if not self._by_shard:
            return bool(self.merging)
        return bool(self.merging) or any(
            handed.is_aside or handed.move.phase not in _BEFORE for handed in self._by_shard.values()
        )

    @property
    def lacks_state(self) -> bool:
        """Whether flushes of all tasks would leave out any partials; those of a source that stays are its own."""
        if self.merging:
            return True
        return any(
            handed.is_aside if handed.move.phase in _BEFORE else handed.move.phase is not InstantPhase.STAYING
            for handed in self._by_shard.values()
        )

    @property
    def staying(self) -> int:
        """How many moves wait for the windows of the earlier owner to close."""
        return sum(move.phase is InstantPhase.STAYING for move in self.moves) if self._by_shard else 0

    def leaving(self, shard: int) -> int | None:
        """Return the task that still has partials of a shard beside its owner; None if none has."""
        handed = self._by_shard.get(shard)
        if handed is None or handed.move.has_left or handed.move.phase in _BEFORE:
            return None
        return handed.move.source

    def begin(self, shard: int, source: Task, target: Task, now: float, smooth: bool = False) -> list[Instruction]:
        """Move a shard to a task on another node; if the move is smooth, the source keeps its windows."""
        move = InstantMove(shard, source.number, target.number, smooth=smooth)
        if smooth:
            # After a restart, or a change of the home, the state is older than what was noted of its rows.
            self.routes.shared.note(latest_begin(self.store))
        handed = self._by_shard[shard] = HandedOver(move, source.at_home)
        instructions: list[Instruction] = []
        if not source.at_home:
            self.opened()
            handed.begin(self._empty())
            instructions = self._set_aside(shard)
        if self._may_begin(handed, source):
            return instructions + self._act(handed, move.handle(InstantEvent.SOURCE_READY), now)
        move.handle(InstantEvent.SOURCE_BUSY)
        return instructions

    def _may_begin(self, handed: HandedOver, source: Task) -> bool:
        if self._is_setting_aside(handed):
            return False
        if handed.move.smooth and self.routes.has_side(source, handed.move.shard):
            # What an earlier move has divided cannot be divided again.
            return False
        # A close that the source would have to repeat without the target's rows must not be in flight.
        return not any(work.record is not None for work in source.in_flight.values())

    def work_done(self, task: int, now: float) -> list[Instruction]:
        """Begin the moves that waited for what a source had in flight."""
        waiting = [handed for handed in self._by_shard.values() if handed.move.source == task]
        return [instruction for handed in waiting for instruction in self._begin_waiting(handed, now)]

    def _begin_waiting(self, handed: HandedOver, now: float) -> list[Instruction]:
        move = handed.move
        if move.phase is not InstantPhase.WAITING or self._is_setting_aside(handed):
            return []
        if self.routes.tasks[move.target].status is not TaskStatus.ACTIVE:
            return self._act(handed, move.handle(InstantEvent.TARGET_DRAINING), now)
        if not self._may_begin(handed, self.routes.tasks[move.source]):
            return []
        return self._act(handed, move.handle(InstantEvent.SOURCE_READY), now)

    def _is_setting_aside(self, handed: HandedOver) -> bool:
        # A thread of its own does that; what tasks have processed is settled beside it.
        return handed.move.shard in self._setting_aside

    def label_returned(self, task: int, shard: int, now: float) -> list[Instruction] | None:
        """Continue the move of a shard whose label has returned; None if no move waits for it."""
        handed = self._by_shard.get(shard)
        if handed is None or handed.move.source != task or handed.move.has_left:
            return None
        if handed.source_at_home:
            # What it leaves in the primary copy makes room for what the target has flushed.
            self.store.revoke(shard)
            handed.is_free = True
            return self._set_aside(shard)
        return self._act(handed, handed.move.handle(InstantEvent.LABEL_RETURNED), now)

    def _set_aside(self, shard: int) -> list[Instruction]:
        self._setting_aside.append(shard)
        return [SetAside(shard)] if len(self._setting_aside) == 1 else []

    def set_aside(self, shard: int, now: float) -> list[Instruction]:
        """Continue the move of a shard of which nothing is left to be set aside, and begin with the next shard."""
        self._setting_aside.remove(shard)
        instructions: list[Instruction] = [SetAside(other) for other in list(self._setting_aside)[:1]]
        handed = self._by_shard.get(shard)
        if handed is None:
            return instructions
        if handed.source_at_home:
            if handed.is_free and not handed.is_aside and not handed.move.has_left:
                instructions += self._act(handed, handed.move.handle(InstantEvent.LABEL_RETURNED), now)
            return instructions
        return instructions + self._begin_waiting(handed, now)

    def installed(self, shard: int, now: float) -> list[Instruction] | None:
        """Continue the move of a shard whose target was opened or installed; None without a move."""
        handed = self._by_shard.get(shard)
        if handed is None:
            return None
        event = InstantEvent.INSTALLED
        if handed.move.phase is InstantPhase.OPENING:
            beside = handed.move.smooth and not handed.move.has_left
            event = InstantEvent.OPENED_BESIDE if beside else InstantEvent.OPENED
        return self._act(handed, handed.move.handle(event), now)

    def cut_due(self, now: float) -> list[Instruction]:
        """Let no source stay, since the primary copy is about to be copied, and cancel moves that have not begun."""
        instructions: list[Instruction] = []
        for handed in list(self._by_shard.values()):
            move = handed.move
            if move.phase is InstantPhase.OPENING or (move.phase is InstantPhase.WAITING and handed.is_aside):
                # The copy waits until what is set aside has been merged, or the source has left.
                move.smooth = False
            elif move.phase in (InstantPhase.WAITING, InstantPhase.STAYING):
                instructions += self._act(handed, move.handle(InstantEvent.CUT_DUE), now)
        return instructions + self._enter_rest(now)

    def task_drains(self, task: int, now: float) -> list[Instruction]:
        """End the stay of sources, since a task, one of the two that have windows of a shard, is draining."""
        instructions: list[Instruction] = []
        for handed in list(self._by_shard.values()):
            move = handed.move
            if move.phase is InstantPhase.STAYING and task in (move.source, move.target):
                instructions += self._act(handed, move.handle(InstantEvent.TASK_DRAINS), now)
        return instructions

    def closed(self, task: int, record: TimersDue, now: float) -> list[Instruction]:
        """End the stay of a source that has closed the last of its windows."""
        instructions: list[Instruction] = []
        for handed in [h for h in self._by_shard.values() if h.move.source == task]:
            move = handed.move
            if move.phase is InstantPhase.STAYING and self.routes.shared.has_closed(move.shard, record.event):
                instructions += self._act(handed, move.handle(InstantEvent.WINDOWS_CLOSED), now)
        return instructions

    # state, by the thread that carries out instructions, without the executor's lock

    def set_portion_aside(self, shard: int) -> bool:
        """Set a portion of a shard's primary copy aside; returns whether there may be another one."""
        handed = self._by_shard.get(shard)
        return handed is not None and handed.move_portion(self.store)

    def open(self, shard: int, task: int) -> bool:
        """Let the target of a shard begin without state; returns False if the task is no more its target."""
        handed = self._by_shard.get(shard)
        if handed is None or handed.move.phase is not InstantPhase.OPENING or handed.move.target != task:
            return False
        if not handed.is_aside:
            handed.begin(self._empty())
        return True

    def install(self, task: int, state: pa.RecordBatch, labelled: int | None) -> None:
        """Apply the dirty state of a remote task to the primary copy, or to what is set aside of it.

        Parameters
        ----------
        task : int
            The task.
        state : RecordBatch
            Its state.
        labelled : int or None
            The shard whose label the state came with.
        """
        for shard, handed in tuple(self._by_shard.items()):
            if handed.aside_of != task or not handed.is_aside or handed.move.has_left:
                continue
            of_shard = numpy_of(state.column(IDENTITY.index("__shard"))) == shard
            if of_shard.any():
                # Copying all columns takes long.
                handed.change(state if of_shard.all() else state.filter(array_of(of_shard)))
                state = state.filter(array_of(~of_shard))
            if shard == labelled and not handed.source_at_home:
                # Not under the executor's lock, when the label is handled.
                handed.state()
        self.store.install(state, dirty=self.store.track_dirty)

    def _empty(self) -> KeyedStore:
        return KeyedStore(self.store.shards, self.routes.space.shard_of)

    # records and partials

    def record_enters(self, now: float) -> list[Instruction]:
        """Let a state record wait behind all partials: those at home go to their tasks, other shards are paused."""
        for handed in self._by_shard.values():
            if handed.move.phase is InstantPhase.LEAVING:
                handed.move.handle(InstantEvent.RECORD_ENTERED)
                self.routes.hold(handed.move.shard)
        return self._enter_rest(now)

    def _enter_rest(self, now: float) -> list[Instruction]:
        wakes: list[int] = []
        for shard in self.merging.shards:
            for piece in self.merging.rest(shard, now):
                wakes += self.routes.put(shard, piece)
        return _wakes(wakes)

    def feed(self, task: Task, now: float) -> None:
        """Enter parts of partials that wait for a task which is about to take work, if it has nothing else to do."""
        waiting = self.merging.waiting((task.number,), self.routes.table.owner)
        for shard in waiting:
            if task.is_idle or self.merging.is_late(shard, len(waiting), now):
                for piece in self.merging.release(shard):
                    # Behind the rows of an overloaded task each part would wait for as long as these do.
                    task.queue.put_before_rows(piece)

    def _release(self, shard: int) -> None:
        for piece in self.merging.release(shard):
            self.routes.put(shard, piece)

    # losses

    def orphans(self, lost: Collection[int]) -> set[int]:
        """Pause the shards that a loss concerns, and return those that need another target.

        Moves that have not begun are cancelled.
        """
        found: set[int] = set()
        for shard in self.merging.waiting(lost, self.routes.table.owner):
            # The next owner gets it with all else that waits for the lost one.
            self._release(shard)
        for shard, handed in list(self._by_shard.items()):
            move = handed.move
            if move.source not in lost and move.target not in lost:
                continue
            if move.phase is InstantPhase.WAITING:
                move.handle(InstantEvent.SOURCE_LOST if move.source in lost else InstantEvent.TARGET_LOST)
                self._cancel(handed)
                continue
            if move.phase is InstantPhase.STAYING:
                # Its source may have been lost: what waits there is put back for the shard.
                stays = move.source not in lost
                handed.left_behind = self.routes.unshare(shard, self.routes.tasks[move.source] if stays else None)
                self.routes.hold(shard)
            elif move.phase is InstantPhase.LEAVING:
                self.routes.hold(shard)
            if move.source in lost and handed.left_behind:
                # What the source had taken before is put back before it.
                self.routes.put_back(shard, handed.left_behind)
                handed.left_behind = []
            if move.target in lost:
                found.add(shard)
        return found

    def inherit(self, heirs: Mapping[int, int], now: float) -> list[Instruction]:
        """Give moves other targets, and end those whose source is lost; see `Moves.inherit`."""
        instructions: list[Instruction] = []
        for shard, handed in sorted(self._by_shard.items()):
            if shard in heirs:
                instructions += self._act(handed, handed.move.replace_target(heirs[shard]), now)
        for _, handed in sorted(self._by_shard.items()):
            move = handed.move
            if move.source not in self.routes.tasks and not move.has_left:
                instructions += self._act(handed, move.handle(InstantEvent.SOURCE_LOST), now)
        return instructions

    # actions

    def _act(self, handed: HandedOver, action: InstantAction, now: float) -> list[Instruction]:
        move = handed.move
        match action:
            case InstantAction.WAIT:
                return []
            case InstantAction.OPEN:
                return self._open(move, now)
            case InstantAction.LEAVE:
                return self._leave(handed, now)
            case InstantAction.STAY:
                return self._stay(handed, now)
            case InstantAction.TAKE_LEAVE:
                source = self.routes.tasks[move.source]
                handed.left_behind = self.routes.unshare(move.shard, source)
                if any(map(closes, handed.left_behind)) or self.routes.is_closing(source, move.shard):
                    # Rows that come later must not be in what these records close, also if the source is lost.
                    move.handle(InstantEvent.RECORD_ENTERED)
                    self.routes.hold(move.shard)
                return self._send_label(move)
            case InstantAction.RECALL:
                return self._send_label(move)
            case InstantAction.INSTALL:
                target = self.routes.tasks[move.target]
                if target.at_home:
                    return self._act(handed, move.handle(InstantEvent.INSTALLED), now)
                return [InstallState(move.shard, target.number, target.node, copy=True)]
            case InstantAction.MERGE:
                return self._merge(handed, now)
            case InstantAction.CANCEL:
                self._cancel(handed)
        return []

    def _cancel(self, handed: HandedOver) -> None:
        handed.put_back(self.store)
        del self._by_shard[handed.move.shard]

    def _send_label(self, move: InstantMove) -> list[Instruction]:
        label = LabelItem(move.shard, move.target, False)
        return _wakes(self.routes.send_label(self.routes.tasks[move.source], label))

    def _open(self, move: InstantMove, now: float) -> list[Instruction]:
        self.opened()
        if not self.routes.table.paused[move.shard]:
            move.paused_at = now
            self.routes.pause(move.shard)
        return [OpenShard(move.shard, move.target, self.routes.tasks[move.target].node)]

    def _stay(self, handed: HandedOver, now: float) -> list[Instruction]:
        """Let both tasks have the windows of a shard: the source those with rows, the target later ones."""
        move, shared = handed.move, self.routes.shared
        assert shared.sides is not None, "a smooth move needs to know the windows of rows"
        begin = shared.next_begin(self.store.event_time)
        self._grant(move)
        last = shared.sides.last_end(begin)
        instructions = _wakes(self.routes.share(move.shard, SharedShard(move.source, move.target, begin, last)))
        handed.has_arrived = True
        self.arrived(move, now)
        if self.is_last:
            # No record will come that closes windows of one of them.
            instructions += self._act(handed, move.handle(InstantEvent.WINDOWS_CLOSED), now)
        return instructions

    def _leave(self, handed: HandedOver, now: float) -> list[Instruction]:
        move = handed.move
        self._grant(move)
        instructions = _wakes(self.routes.resume_until_record(move.shard, move.target))
        if self.routes.table.paused[move.shard]:
            move.handle(InstantEvent.RECORD_ENTERED)
        handed.has_arrived = True
        self.arrived(move, now)
        return instructions + self._send_label(move)

    def _merge(self, handed: HandedOver, now: float) -> list[Instruction]:
        move = handed.move
        shard, parts = move.shard, handed.state()
        del self._by_shard[shard]
        left_behind = [*map(mixed, handed.left_behind)]
        if not self.routes.table.paused[shard]:
            if not left_behind:
                return self._feed(shard, parts, now)
            pieces = self.merging.every(shard, parts, now)
            return _wakes([task for piece in pieces + left_behind for task in self.routes.put(shard, piece)])
        self.routes.put_back(shard, left_behind)
        self.routes.mix(shard)
        self._grant(move)
        if not handed.has_arrived:
            self.arrived(move, now)
        if self.routes.has_record(shard):
            self.routes.put_before_record(shard, self.merging.every(shard, parts, now))
            return _wakes(self.routes.resume(shard, move.target))
        return _wakes(self.routes.resume(shard, move.target)) + self._feed(shard, parts, now)

    def _feed(self, shard: int, parts: HandedState, now: float) -> list[Instruction]:
        piece = self.merging.first(shard, parts, now)
        return [] if piece is None else _wakes(self.routes.put(shard, piece))

    def _grant(self, move: InstantMove) -> None:
        if self.routes.tasks[move.target].at_home:
            self.store.grant(move.shard, move.target)


def _wakes(tasks: list[int]) -> list[Instruction]:
    return [Wake(task) for task in tasks]
