"""Moves of key groups in a simulated job: a coordinator, and what the nodes do that it asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial

from dask_elastic.executor import events
from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.migration.group_move import (
    PROGRESSIVE,
    SYNCHRONISED,
    GroupAction,
    GroupEvent,
    GroupMove,
    GroupPhase,
)
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.groups.group_fibers import GroupFibers
from dask_elastic.simulator.groups.packets import GroupFence, GroupFencePassed, GroupPacket
from dask_elastic.simulator.homes.home_moves import MovingJob
from dask_elastic.vocab.errors import MoveRefused
from dask_elastic.vocab.identity import ExecutorId


class GroupMoves:
    """The moves of key groups of a simulated job, one set of groups at a time.

    Parameters
    ----------
    world : MovingJob
        The job.

    Attributes
    ----------
    current : GroupMove or None
        The move in progress.
    begins : callable
        Called when a move begins, so that a checkpoint in progress is given up.
    is_quiet : callable
        Whether all nodes have given up that checkpoint.
    happened : Counter of str
        How often moves ended in which way, how many groups arrived, and how many portions of state were copied before
        groups left, and how many while they did.
    """

    def __init__(self, world: MovingJob):
        self.world = world
        self.current: GroupMove[Hashable] | None = None
        self.begins: Callable[[], None] = lambda: None
        self.is_quiet: Callable[[], bool] = lambda: True
        self.happened: Counter[str] = Counter()
        self._tables: dict[str, GroupTable] = {}
        # The mini-migrations that have not begun.
        self._left: list[dict[int, int]] = []
        self._versions: Counter[str] = Counter()
        self._unpassed: dict[tuple[ExecutorId, int], set[int]] = {}

    # the coordinator

    def table(self, operator: str) -> GroupTable:
        """Return the newest table of an operator; nodes get it later."""
        found = self._tables.get(operator)
        if found is None:
            first = self.world.tier.first(operator)
            assert isinstance(first, GroupTable), f"the groups of {operator} do not move"
            found = self._tables[operator] = first
        return found

    def request(
        self, operator: str, moves: Mapping[int, int], strategy: str = PROGRESSIVE, most_groups: int | None = None
    ) -> None:
        """Begin to move groups of an operator to other executors.

        Parameters
        ----------
        operator : str
            The operator.
        moves : mapping of int to int
            The next executor of each group that moves.
        strategy : {"progressive", "synchronised"}
            How they move.
        most_groups : int, optional
            The most groups that move at a time, in mini-migrations one after the other; by default all at once.

        Raises
        ------
        MoveRefused
            If groups are moving already, the table refuses the moves, or an executor of the operator has finished.
        PlanningError
            If `most_groups` is below 1.
        """
        if self.current is not None:
            raise MoveRefused(f"{self.current} has not ended: wait for its end")
        self.table(operator).check(moves)
        if not all(identity in self.world.open for identity in self._executors(operator)):
            raise MoveRefused(f"{operator!r} has got its last row: its groups do not move any more")
        self._left = [dict(moves)] if most_groups is None else self._minis(operator, moves, most_groups)
        self.begins()
        self._begin(operator, strategy)

    def _minis(self, operator: str, moves: Mapping[int, int], most_groups: int) -> list[dict[int, int]]:
        # Takes long to import, and few simulations need it; those of `dask_elastic.testing` never do.
        from dask_elastic.planning.mini_migrations import GroupTransfer, mini_migrations

        owners, executors = self.table(operator).owners, self._executors(operator)
        sizes = [self._home(one).executor.store.shard_bytes() for one in executors]
        transfers = [
            GroupTransfer(
                group,
                to,
                self._node_of(executors[owners[group]]),
                self._node_of(executors[to]),
                int(sizes[owners[group]][group]),
            )
            for group, to in moves.items()
        ]
        return [{one.group: one.executor for one in mini} for mini in mini_migrations(transfers, most_groups)]

    def _begin(self, operator: str, strategy: str) -> None:
        moves = self._left.pop(0)
        # A move that is cancelled uses a version too, so that nothing of it is taken for a part of the next one.
        self._versions[operator] += 1
        owners = self.table(operator).owners
        before = {group: int(owners[group]) for group in moves}
        self.current = GroupMove(operator, self._versions[operator], moves, before, strategy)
        self.world.spawn(str(self.current), self._start(self.current))

    def _start(self, move: GroupMove[Hashable]) -> FiberSteps:
        yield lambda: self.is_quiet()
        self._act(move, move.handle(GroupEvent.STARTED))

    def _executors(self, operator: str) -> list[ExecutorId]:
        return self.world.placement.instances(operator)

    def _participants(self, move: GroupMove[Hashable]) -> list[ExecutorId]:
        everyone = self._executors(move.operator)
        if move.strategy == SYNCHRONISED:
            return everyone
        here = {*move.executors.values(), *move.before.values()}
        return [everyone[executor] for executor in sorted(here)]

    def _act(self, move: GroupMove[Hashable], action: GroupAction) -> None:
        self.world.record("{}: {}", move, action.name)
        participants = self._participants(move)
        match action:
            case GroupAction.COPY:
                self._ask(move, participants, partial(self._copy, move))
            case GroupAction.HOLD:
                self._ask(move, participants, partial(self._hold, move))
            case GroupAction.SWITCH | GroupAction.PAUSE:
                self._switch_all(move, action is GroupAction.PAUSE)
                marks = events.MarksDue(move.version)
                self._ask(move, participants, lambda one: self._home(one).handle(marks))
            case GroupAction.MOVE:
                self._ask(move, participants, partial(self._give, move.version))
            case GroupAction.RESUME:
                move.ask(self._nodes())
                for node in self._nodes():
                    self._at(node, self._resume(move, node))
            case GroupAction.CANCEL:
                self._ask(move, participants, partial(self._forgotten, move))
            case GroupAction.CLOSE:
                self._close(move)

    def _close(self, move: GroupMove[Hashable]) -> None:
        self.happened[f"{move.strategy} {move.phase.value}"] += 1
        if move.phase is GroupPhase.ARRIVED:
            self.happened["groups"] += len(move.executors)
        self.current = None
        if self._left and move.phase is GroupPhase.ARRIVED:
            self._begin(move.operator, move.strategy)

    def _answered(self, who: Hashable, refuses: bool = False) -> None:
        move = self.current
        assert move is not None, f"{who} has answered, but no groups move"
        action = move.answered(who, refuses)
        if action is not None:
            self._act(move, action)

    # what executors report

    def held(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor holds what arrives for groups to come, unless the move was cancelled meanwhile."""
        assert self.current is not None
        if self.current.phase is GroupPhase.HOLDING and self.current.version == version:
            self._answered(executor)

    def drained(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor is drained."""
        assert self.current is not None
        if self.current.phase is GroupPhase.PAUSING:
            self._answered(executor)
        else:
            self._home(executor).give(version)

    def exchanged(self, executor: ExecutorId, version: int) -> None:
        """Note that an executor has given and got all groups."""
        self._answered(executor)

    # what nodes do

    def _nodes(self) -> Iterable[int]:
        return range(self.world.placement.nodes)

    def _home(self, executor: ExecutorId) -> GroupFibers:
        found = self.world.homes[executor]
        assert isinstance(found, GroupFibers)
        return found

    def _node_of(self, executor: ExecutorId) -> int:
        return self.world.placement.node_of(executor)

    def _at(self, node: int, steps: FiberSteps) -> None:
        self.world.spawn(f"groups at node {node}", self._late(steps), node)

    @staticmethod
    def _late(steps: FiberSteps) -> FiberSteps:
        yield None
        yield from steps

    def _ask(
        self, move: GroupMove[Hashable], executors: list[ExecutorId], steps: Callable[[ExecutorId], FiberSteps]
    ) -> None:
        move.ask(executors)
        for one in executors:
            self._at(self._node_of(one), steps(one))

    def _copy(self, move: GroupMove[Hashable], executor: ExecutorId) -> FiberSteps:
        if loses := _loses(move, executor):
            yield from self._home(executor).copy_groups(move.version, loses)
        self._answered(executor)

    def _hold(self, move: GroupMove[Hashable], executor: ExecutorId) -> FiberSteps:
        home, loses = self._home(executor), _loses(move, executor)
        gains = tuple(group for group, to in move.executors.items() if to == executor.index)
        try:
            yield from home.handle(events.HoldGroups(move.version, gains, loses, move.strategy == SYNCHRONISED))
        except MoveRefused:
            self._answered(executor, refuses=True)

    def _give(self, version: int, executor: ExecutorId) -> FiberSteps:
        self._home(executor).give(version)
        yield None

    def _forgotten(self, move: GroupMove[Hashable], executor: ExecutorId) -> FiberSteps:
        yield from self._home(executor).forget_groups(move.version)
        self._answered(executor)

    def _switch_all(self, move: GroupMove[Hashable], pauses: bool) -> None:
        before = self.table(move.operator)
        after = before.moved(move.executors, mark_all=pauses, version=move.version)
        self._tables[move.operator] = after
        for node in self._nodes():
            self._at(node, self._switch(node, move.operator, after, pauses))

    def _upstream(self, node: int, operator: str) -> list[ExecutorId]:
        names = self.world.components[operator].inputs
        instances = [i for name in names for i in self.world.placement.instances(name)]
        return [instance for instance in instances if self._node_of(instance) == node]

    def _switch(self, node: int, operator: str, table: GroupTable, pauses: bool) -> FiberSteps:
        tier = self.world.tier
        here = [(origin, tier.sends(origin, node, operator)) for origin in self._upstream(node, operator)]
        tier.set_table(node, operator, table)
        for origin, sends in here:
            sends.paused = pauses
            yield from self.world.send_marks(origin, operator, sends.switch(table))

    def _resume(self, move: GroupMove[Hashable], node: int) -> FiberSteps:
        for origin in self._upstream(node, move.operator):
            self.world.tier.sends(origin, node, move.operator).paused = False
        self._answered(node)
        yield None

    # between executors

    def send_copied(self, source: ExecutorId, target: int, copied: CopiedGroups) -> FiberSteps:
        """Send a portion of state to another executor, and wait until it is installed."""
        assert self.current is not None
        self.happened["copied before" if self.current.phase is GroupPhase.COPYING else "copied last"] += 1
        executor, installed = ExecutorId(source.component, target), []

        def install() -> FiberSteps:
            yield from self._home(executor).receive_copied(copied)
            installed.append(True)

        self._at(self._node_of(executor), install())
        yield lambda: bool(installed)

    def send_fence(self, executor: ExecutorId, version: int) -> None:
        """Send a fence to every node."""
        home = self._node_of(executor)
        unpassed = self._unpassed[executor, version] = {node for node in self._nodes() if node != home}
        for node in sorted(unpassed):
            self.world.network.send(home, node, GroupFence(executor, version))

    def await_fence(self, executor: ExecutorId, version: int) -> FiberSteps:
        """Wait until the fence has passed at every node."""
        yield lambda: not self._unpassed[executor, version]

    def receive(self, node: int, packet: GroupPacket) -> FiberSteps:
        """Handle a packet at a node."""
        match packet:
            case GroupFence(executor, version):
                home = self._node_of(executor)
                self.world.network.send(node, home, GroupFencePassed(executor, version, node))
            case GroupFencePassed(executor, version, passed):
                self._unpassed[executor, version].discard(passed)
        yield None

    def send(self, source: ExecutorId, target: int, groups: HandedGroups) -> None:
        """Send groups to another executor, beside the channels that carry rows."""
        executor = ExecutorId(source.component, target)
        self._at(self._node_of(executor), self._home(executor).receive_groups(groups))


def _loses(move: GroupMove[Hashable], executor: ExecutorId) -> dict[int, int]:
    """Return the next executor of each group that leaves an executor."""
    return {group: to for group, to in move.executors.items() if move.before[group] == executor.index}
