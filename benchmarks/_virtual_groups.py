"""The job of `_virtual.py` in the resource-centric paradigm: executors of one core, between which key groups move.

Executors, the table of groups, the protocol of moves and the planning of groups are the engine's own. Emulated are the
calls between coordinator and nodes, a hop each way, and the channel of the source, on which end marks follow the rows.
State and outputs are not emulated: neither its copies nor the fence behind the outputs take time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from _virtual import HOP, LOOK_SECONDS, OPERATOR, ORDER_SECONDS, SOURCE, Keys, Options, VirtualJob

from dask_elastic.control.placement.groups import GroupPlanning
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.meters.shard_arrivals import COMPARED_SECONDS
from dask_elastic.migration.group_move import SYNCHRONISED, GroupAction, GroupEvent, GroupMove, GroupPhase
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, Snapshot

JOB = "dynamics", 1


class VirtualGroups(VirtualJob):
    """A source that saturates all cores, and one keyed operator whose key groups move.

    Parameters
    ----------
    keys, options
        As for `VirtualJob`; `executors` is the number of cores, `shards` that of the groups.
    settings : PlacementSettings
        When groups move.
    strategy : {"progressive", "synchronised", "auto"}
        How they move.
    placement : str
        The planner.

    Attributes
    ----------
    ended : list of EndedGroupMove
        The moves; the pause of one is the time from the switch of the source to the end.
    """

    def __init__(self, keys: Keys, options: Options, settings: PlacementSettings, strategy: str, placement: str):
        # There is one core for each executor, so that neither cores nor balancing change anything.
        homes = [j * options.nodes // options.executors for j in range(options.executors)]
        self.table = GroupTable.initial(options.shards, homes)
        super().__init__(keys, replace(options, elastic=False))
        self.planning = GroupPlanning(settings)
        self.strategy = strategy
        self.placement = placement
        self.ended: list[EndedGroupMove] = []
        self._move: GroupMove[int] | None = None
        self._left: list[tuple[dict[int, int], float]] = []
        self._way = strategy
        self._versions = 0
        self._began = self._switched = 0.0
        self._paused = False

    def make_space(self) -> KeySpace:
        """Return the key space: shards are groups in all executors."""
        return KeySpace.of_groups(self.options.shards)

    def make_executor(self, index: int, limits: ExecutorLimits) -> ElasticExecutor:
        """Return an executor that owns its first groups."""
        groups = self.table.owned_by(index)
        place = ExecutorId(OPERATOR, index), self.space, self.homes[index], self.cores[index], [SOURCE]
        return GroupExecutor(*place, limits=limits, groups=groups)

    def run(self, seconds: float) -> VirtualGroups:
        """Run for a number of seconds."""
        self.every(self.options.control_period, self.options.control_period + LOOK_SECONDS, self._plan)
        super().run(seconds)
        return self

    # source

    def blocked(self, index: int) -> bool:
        """Whether the source waits at an executor."""
        return self._paused or super().blocked(index)

    def deliver(self, hashes: np.ndarray) -> Iterator[int]:
        """Deliver a batch to its executors in turn, by the newest table; yields each while the source has to wait."""
        stamp = self.now
        while len(hashes):
            owners = self.table.owners[self.space.shard_of(hashes)]
            index = int(owners.min())
            if self.blocked(index):
                if not self._paused:
                    self.gates[index].window.held_back()
                yield index
                continue
            part, hashes = hashes[owners == index], hashes[owners != index]
            self.send_to(index, Batch(pa.record_batch({"key": part.view(np.int64)}), part, stamp))

    # the coordinator of moves

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the newest reports, with the newest moves."""
        made = super().snapshot()
        about = {"paradigm": "resource-centric", "placement": self.placement, "strategies": {OPERATOR: self.strategy}}
        [job] = made.jobs
        return replace(made, jobs=(replace(job, **about, group_moves=tuple(self.ended[-16:])),))

    def measured(self, index: int, one: ExecutorMeasure) -> ExecutorSnapshot:
        """Return an executor of the snapshot, with what arrives for its groups."""
        groups = np.flatnonzero(self.table.owners == index)
        return replace(super().measured(index, one), shard_load=one.arriving_load, groups=groups)

    def _plan(self) -> None:
        if len(self._reports) < len(self.executors):
            return
        snapshot = self.snapshot()
        self.snapshots.append(snapshot)
        self.planning.observe(snapshot)
        owners = {JOB: {OPERATOR: self.table.owners.tolist()}}
        for decision in self.planning.decide(owners, {JOB: {OPERATOR: self.strategy}}):
            if decision.moves and self._move is None and not self._left:
                self.decisions.append(f"{self.now:.1f} {decision.strategy}: {decision.reason}")
                self._way = decision.strategy
                drains = (expected.drain for expected in decision.expected)
                self._left = [*zip(decision.moves, drains, strict=True)]
                self.at(self.now + ORDER_SECONDS, self._begin)

    def _begin(self) -> None:
        moves, _ = self._left[0]
        self._versions += 1
        before = {group: int(self.table.owners[group]) for group in moves}
        self._move = GroupMove(OPERATOR, self._versions, moves, before, self._way)
        self._began = self.now
        self._act(self._move, self._move.handle(GroupEvent.STARTED))

    def _participants(self, move: GroupMove[int]) -> list[int]:
        if move.strategy == SYNCHRONISED:
            return [*range(len(self.executors))]
        return sorted({*move.executors.values(), *move.before.values()})

    def _act(self, move: GroupMove[int], action: GroupAction) -> None:
        participants = self._participants(move)
        match action:
            case GroupAction.COPY:
                self._ask(move, participants, self._answer)
            case GroupAction.HOLD:
                self._ask(move, participants, self._hold)
            case GroupAction.SWITCH | GroupAction.PAUSE:
                move.ask(participants)
                self.at(self.now + HOP, lambda: self._switch(move, action is GroupAction.PAUSE))
                for index in participants:
                    due = events.MarksDue(move.version)
                    self.at(self.now + HOP, lambda j=index, due=due: self._handle(j, due))
            case GroupAction.MOVE:
                self._ask(move, participants, self._give)
            case GroupAction.RESUME:
                self._ask(move, [0], self._resume)
            case GroupAction.CLOSE:
                self._close(move)
            case _:
                raise AssertionError(f"{move}: no move is cancelled here, but {action.name}")

    def _ask(self, move: GroupMove[int], whom: Iterable[int], what: Callable[[int], None]) -> None:
        asked = [*whom]
        move.ask(asked)
        for one in asked:
            self.at(self.now + HOP, lambda one=one: what(one))

    def _answer(self, who: int) -> None:
        def answered() -> None:
            assert self._move is not None
            action = self._move.answered(who)
            if action is not None:
                self._act(self._move, action)

        self.at(self.now + HOP, answered)

    def _close(self, move: GroupMove[int]) -> None:
        assert move.phase is GroupPhase.ARRIVED, f"{move} has ended as {move.phase}"
        _, drain = self._left.pop(0)
        settled = self.now + self.options.report_interval + COMPARED_SECONDS
        taken = len(move.executors), 0, 0, self.now - self._switched, self.now - self._began
        ended = EndedGroupMove(len(self.ended) + 1, OPERATOR, move.strategy, *taken, settled, drain)
        self.ended.append(ended)
        self.planning.moved(JOB, ended)
        self._move = None
        if self._left:
            self._begin()

    # nodes

    def _hold(self, index: int) -> None:
        move = self._current()
        gains = tuple(group for group, to in move.executors.items() if to == index)
        loses = {group: to for group, to in move.executors.items() if move.before[group] == index}
        self._handle(index, events.HoldGroups(move.version, gains, loses, move.strategy == SYNCHRONISED))
        self._answer(index)

    def _switch(self, move: GroupMove[int], pauses: bool) -> None:
        before, self._switched = self.table, self.now
        self.table = before.moved(move.executors, mark_all=pauses, version=move.version)
        self._paused = pauses
        for due in self.table.marks_since(before):
            delay, mark = 0.0 if due.home == 0 else HOP, events.EndMark(SOURCE, due.version)
            self.at(self.now + delay, lambda j=due.executor, mark=mark: self._handle(j, mark))
        self.go_on()

    def _resume(self, who: int) -> None:
        self._paused = False
        self._answer(who)
        self.go_on()

    def _give(self, index: int) -> None:
        exchange = self.executors[index].exchange
        assert exchange is not None, "a participant takes part"
        for target in sorted({*exchange.loses.values()}):
            groups = tuple(group for group, to in exchange.loses.items() if to == target)
            handed = HandedGroups(exchange.version, index, groups, 0, (), {}, exchange.left_at, self.now)
            self.at(self.now + HOP, lambda j=target, handed=handed: self._handle(j, events.GroupsInstalled(handed)))
        self._handle(index, events.GroupsGiven(exchange.version))

    def _carry_out(self, index: int, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.GroupsDrained():
                    if self._current().phase is GroupPhase.PAUSING:
                        self._answer(index)
                    else:
                        self._give(index)
                case do.GroupsExchanged():
                    self._answer(index)
                case _:
                    super()._carry_out(index, [instruction])

    def _current(self) -> GroupMove[int]:
        assert self._move is not None, "groups move"
        return self._move
