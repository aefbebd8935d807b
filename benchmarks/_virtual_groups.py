"""The job of `_virtual.py` in the resource-centric paradigm: executors of one core, between which key groups move.

Executors, the table of groups, the protocol of moves and the planning of groups are the engine's own. Emulated are the
calls between coordinator and nodes, the channels of the source, on which end marks follow the rows, the fence behind
the outputs, and the way of the state: an executor gives groups to one executor after the other, as in the engine. All
state moves once more after a progressive copy, as if all of it had changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
from _network import HOP
from _virtual import LOOK_SECONDS, OPERATOR, ORDER_SECONDS, Keys, VirtualJob
from _virtual_options import Options

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
from dask_elastic.planning.balance import balance
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, Snapshot

JOB = "dynamics", 1

Planned = list[tuple[dict[int, int], str, float | None]]
"""Moves, one after the other: the groups, the strategy, and how long what is queued before them is expected to take."""

ByTarget = list[tuple[int, tuple[int, ...]]]
"""The groups that executors get."""


class VirtualGroups(VirtualJob):
    """A source, and one keyed operator whose key groups move.

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
    stops : list of (float, float)
        From when until when all instances paused.
    repartitionings : list of (float, int)
        The seconds that plans took, and the groups that they moved.
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
        self.stops: list[tuple[float, float]] = []
        self.repartitionings: list[tuple[float, int]] = []
        self._planned: tuple[float, int] = 0.0, 0
        self._move: GroupMove[int] | None = None
        self._left: Planned = []
        self._versions = 0
        self._began = self._switched = 0.0
        self._paused = False
        self._unanswered: dict[int, set[int]] = {}

    def make_space(self) -> KeySpace:
        """Return the key space: shards are groups in all executors."""
        return KeySpace.of_groups(self.options.shards)

    def make_executor(self, index: int, limits: ExecutorLimits) -> ElasticExecutor:
        """Return an executor that owns its first groups."""
        groups = self.table.owned_by(index)
        place = ExecutorId(OPERATOR, index), self.space, self.homes[index], self.cores[index], self.origins
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

    def deliver(self, hashes: np.ndarray, origin: int, due: float) -> Iterator[int]:
        """Deliver a batch to its executors in turn, by the newest table; yields each while the source has to wait."""
        while len(hashes):
            owners = self.table.owners[self.space.shard_of(hashes)]
            index = int(owners.min())
            if self.blocked(index):
                if not self._paused:
                    self.gates[index].window.held_back()
                yield index
                continue
            part, hashes = hashes[owners == index], hashes[owners != index]
            self.send_to(index, Batch(pa.record_batch({"key": part.view(np.int64)}), part, due), origin)

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

    def state_of(self, index: int) -> np.ndarray:
        """Return the bytes of each group at an executor."""
        return np.where(self.table.owners == index, self.options.costs.shard_bytes, 0)

    def _plan(self) -> None:
        if len(self._reports) < len(self.executors):
            return
        snapshot = self.snapshot()
        self.looked_at(snapshot)
        self.planning.observe(snapshot)
        planned = self.planned(snapshot)
        if planned and self._move is None and not self._left:
            self._left = planned
            self._planned = self.now, sum(len(moves) for moves, *_ in planned)
            self.at(self.now + ORDER_SECONDS, self._begin)

    def planned(self, snapshot: Snapshot) -> Planned:
        """Return the moves of a plan, which begin unless groups move already."""
        owners = {JOB: {OPERATOR: self.table.owners.tolist()}}
        found: Planned = []
        for decision in self.planning.decide(owners, {JOB: {OPERATOR: self.strategy}}):
            self.decisions.append(f"{self.now:.1f} {decision.strategy}: {decision.reason}")
            for moves, expected in zip(decision.moves, decision.expected, strict=True):
                found.append((moves, decision.strategy, expected.drain))
        return found

    def _begin(self) -> None:
        moves, strategy, _ = self._left[0]
        self._versions += 1
        before = {group: int(self.table.owners[group]) for group in moves}
        self._move = GroupMove(OPERATOR, self._versions, moves, before, strategy)
        self._began = self.now
        self._act(self._move, self._move.handle(GroupEvent.STARTED))

    def _participants(self, move: GroupMove[int]) -> list[int]:
        if move.strategy == SYNCHRONISED:
            return [*range(len(self.executors))]
        return sorted({*move.executors.values(), *move.before.values()})

    def _act(self, move: GroupMove[int], action: GroupAction) -> None:
        match action:
            case GroupAction.COPY:
                self._ask(move, self._copy)
            case GroupAction.HOLD:
                self._ask(move, self._hold)
            case GroupAction.SWITCH | GroupAction.PAUSE:
                before, pauses = self.table, action is GroupAction.PAUSE
                self._ask(move, self._marks_due, lambda node: self._switch(node, move, before, pauses))
            case GroupAction.MOVE:
                self._ask(move, self._give)
            case GroupAction.RESUME:
                self._ask(move, self._answer, self._resume)
            case GroupAction.CLOSE:
                self._close(move)
            case _:
                raise AssertionError(f"{move}: no move is cancelled here, but {action.name}")

    def _ask(
        self, move: GroupMove[int], what: Callable[[int], None], first: Callable[[int], None] | None = None
    ) -> None:
        """Call all nodes, where something is done for the node, then for each of its executors that takes part."""
        costs, network = self.options.costs, self.network
        nodes = range(self.options.nodes)
        self._unanswered = {node: set() for node in nodes}
        for index in self._participants(move):
            self._unanswered[self.homes[index]].add(index)
        move.ask(nodes)

        def ask(node: int) -> None:
            if first is not None:
                first(node)
            if not self._unanswered[node]:
                self._node_answers(node)
            for index in sorted(self._unanswered[node]):
                self.at(network.handled(self.now, node, costs.step), lambda index=index: what(index))

        for node in nodes:
            leaves = network.handled(self.now, network.coordinator, costs.call)
            arrives = network.handled(leaves + HOP, node, costs.call)
            self.at(arrives, lambda node=node: ask(node))

    def _answer(self, index: int) -> None:
        """Note that an executor has done what its node was asked for; the node answers for all of them."""
        node = self.homes[index]
        self._unanswered[node].discard(index)
        if not self._unanswered[node]:
            self._node_answers(node)

    def _node_answers(self, node: int) -> None:
        def answered() -> None:
            action = self._current().answered(node)
            if action is not None:
                self._act(self._current(), action)

        def arrived() -> None:
            self.at(self.network.handled(self.now, self.network.coordinator, self.options.costs.call), answered)

        self.at(self.now + HOP, arrived)

    def _close(self, move: GroupMove[int]) -> None:
        assert move.phase is GroupPhase.ARRIVED, f"{move} has ended as {move.phase}"
        *_, drain = self._left.pop(0)
        settled = self.now + self.options.report_interval + COMPARED_SECONDS * (move.strategy == SYNCHRONISED)
        nbytes = len(move.executors) * self.options.costs.shard_bytes
        taken = len(move.executors), nbytes, nbytes, self.now - self._switched, self.now - self._began
        ended = EndedGroupMove(len(self.ended) + 1, OPERATOR, move.strategy, *taken, settled, drain)
        self.ended.append(ended)
        self.planning.moved(JOB, ended)
        self._move = None
        if self._left:
            self._begin()
        else:
            began, groups = self._planned
            self.repartitionings.append((self.now - began, groups))

    # nodes

    def _hold(self, index: int) -> None:
        move = self._current()
        gains = tuple(group for group, to in move.executors.items() if to == index)
        loses = {group: to for group, to in move.executors.items() if move.before[group] == index}
        self._handle(index, events.HoldGroups(move.version, gains, loses, move.strategy == SYNCHRONISED))

    def _marks_due(self, index: int) -> None:
        self._handle(index, events.MarksDue(self._current().version))

    def _switch(self, node: int, move: GroupMove[int], before: GroupTable, pauses: bool) -> None:
        """Let the instances on a node send end marks; the source uses the next table since the first of these calls."""
        if self.table is before:
            self.table = before.moved(move.executors, mark_all=pauses, version=move.version)
            self._switched, self._paused = self.now, pauses
            self.go_on()
        for origin in (one for one, at in zip(self.origins, self.origin_nodes, strict=True) if at == node):
            for due in self.table.marks_since(before):
                mark = events.EndMark(origin, due.version)
                self._send(node, due.home, lambda j=due.executor, mark=mark: self._handle(j, mark))

    def _send(self, node: int, target: int, what: Callable[[], None]) -> None:
        """Send a message of the protocol to a node, behind the rows, and handle it there."""
        network, mark = self.network, self.options.costs.mark
        arrival = network.arrival(network.handled(self.now, node, mark), node, target)
        self.at(arrival, lambda: self.at(network.handled(self.now, target, mark), what))

    def _resume(self, node: int) -> None:
        if self._paused:
            self._paused = False
            self.stops.append((self._switched, self.now))
            self.go_on()

    def _copy(self, index: int) -> None:
        move = self._current()
        loses = {group: to for group, to in move.executors.items() if move.before[group] == index}
        self._transfer(index, _by_target(loses), lambda target, groups: None, lambda: self._answer(index))

    def _give(self, index: int) -> None:
        exchange = self.executors[index].exchange
        assert exchange is not None, "a participant takes part"

        def installed(target: int, groups: tuple[int, ...]) -> None:
            handed = HandedGroups(exchange.version, index, groups, 0, (), {}, exchange.left_at, self.now)
            self._handle(target, events.GroupsInstalled(handed))

        def given() -> None:
            self._handle(index, events.GroupsGiven(exchange.version))

        if exchange.loses:
            by_target = _by_target(exchange.loses)
            self._fence(self.homes[index], lambda: self._transfer(index, by_target, installed, given))
        else:
            given()

    def _fence(self, home: int, then: Callable[[], None]) -> None:
        """Send a fence behind the outputs to all other nodes, and wait until each has confirmed it."""
        others = {*range(self.options.nodes)} - {home}
        if not others:
            then()

        def passed(node: int) -> None:
            others.discard(node)
            if not others:
                then()

        for node in sorted(others):
            self._send(home, node, lambda node=node: self._send(node, home, lambda: passed(node)))

    def _transfer(
        self,
        index: int,
        by_target: ByTarget,
        installed: Callable[[int, tuple[int, ...]], None],
        then: Callable[[], None],
    ) -> None:
        """Give the state of groups to one executor after the other, each when the one before has got its groups."""
        if not by_target:
            then()
            return
        (target, groups), *others = by_target
        costs, network, home, there = self.options.costs, self.network, self.homes[index], self.homes[target]
        nbytes = len(groups) * costs.shard_bytes

        def arrived() -> None:
            self.at(network.handled(self.now, there, costs.call + nbytes * costs.state), got)

        def got() -> None:
            installed(target, groups)
            answered = self.now if there == home else self.now + HOP
            self.at(answered, lambda: self._transfer(index, others, installed, then))

        leaves = network.handled(self.now, home, costs.call + nbytes * costs.state)
        self.at(network.state_arrival(leaves, home, there, nbytes), arrived)

    def _carry_out(self, index: int, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.GroupsHeld():
                    self._answer(index)
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


def _by_target(loses: Mapping[int, int]) -> ByTarget:
    targets = sorted({*loses.values()})
    return [(target, tuple(group for group, to in loses.items() if to == target)) for target in targets]


class VirtualReassignments(VirtualGroups):
    """The resource-centric baseline as the Elasticutor paper describes it: one key group at a time.

    Groups are balanced over executors by the algorithm that balances shards over tasks, with the same threshold, since
    the paper's baseline "uses the same load balancing algorithm". Each reassignment of the plan has a global
    synchronisation of its own (sections 1, 5.1 and Figures 11 and 12, which measure reassignments of single shards).
    """

    def planned(self, snapshot: Snapshot) -> Planned:
        """Return the moves of a plan."""
        if self._left or (self.ended and self.now < self.ended[-1].settled):
            return []
        [job] = snapshot.jobs
        load = np.sum([one.shard_load for one in job.executors if one.shard_load is not None], axis=0)
        tasks = range(len(self.executors))
        plan = balance(load, self.table.owners.astype(np.int64), tasks, self.options.balance_threshold, self.homes)
        return [({move.shard: move.target}, SYNCHRONISED, None) for move in plan]
