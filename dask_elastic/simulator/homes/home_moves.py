"""Moves of homes in a simulated job: what the nodes do and send, as the protocol's table says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from dask_elastic.executor import events
from dask_elastic.executor.homes.arrival import Arrival
from dask_elastic.migration.home_move import HomeAction, HomeEvent, HomeMove, HomePhase
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.routing.mark_due import MarkDue
from dask_elastic.simulator.executor_fibers import ExecutorFibers
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.homes.first_tier import FirstTier
from dask_elastic.simulator.homes.packets import (
    Copied,
    Dropped,
    Fence,
    FencePassed,
    HandedOver,
    HomePacket,
    Installed,
    Prepare,
    Prepared,
    Switch,
    Taken,
)
from dask_elastic.simulator.homes.same_state import check_same_state
from dask_elastic.simulator.homes.state_copies import StateCopies
from dask_elastic.simulator.instances import JobInstances, make_executor
from dask_elastic.simulator.network import Item, Sent
from dask_elastic.simulator.remote_fibers import RemoteFibers
from dask_elastic.vocab.errors import ElasticError, MoveRefused, ProtocolError
from dask_elastic.vocab.identity import ExecutorId


class MovingJob(JobInstances, Protocol):
    """A job whose homes move; implemented by `World`."""

    tier: FirstTier
    remotes: dict[tuple[int, ExecutorId], RemoteFibers]
    given_up: set[tuple[int, int]]
    outages: Counter[int]

    def node_of(self, instance: ExecutorId) -> int:
        """Return the node of an instance."""
        ...

    def bring(self, source: int, node: int, sent: Sent) -> FiberSteps:
        """Bring what an instance sends to a node."""
        ...

    def send_marks(self, origin: ExecutorId, component: str, due: list[MarkDue]) -> FiberSteps:
        """Send the end marks that are due."""
        ...

    def command(
        self, executor: ExecutorId, event: events.Event, refused: Callable[[ElasticError], None] | None = None
    ) -> None:
        """Let an executor handle an event, in a fiber of its own."""
        ...


class HomeMoves:
    """The moves of homes of a simulated job, one at a time.

    Parameters
    ----------
    world : MovingJob
        The job.

    Attributes
    ----------
    current : HomeMove or None
        The move in progress.
    begins : callable
        Called when the state is copied, so that a checkpoint in progress is given up.
    copies : StateCopies
        The copies of state.
    happened : Counter of str
        How often moves ended in which way, and how many items a new home has held.
    """

    def __init__(self, world: MovingJob):
        self.world = world
        self.current: HomeMove | None = None
        self.begins: Callable[[], None] = lambda: None
        self.happened: Counter[str] = Counter()
        self.copies = StateCopies(world, self._send)
        self._tables: dict[str, HomeTable] = {}
        self._arrivals: dict[ExecutorId, tuple[int, Arrival[tuple[ExecutorId, Item]]]] = {}

    def request(self, executor: ExecutorId, target: int) -> None:
        """Begin to move a home.

        Raises
        ------
        MoveRefused
            If a home is moving already, or the executor has finished, its home is there already, or its key groups
            move between executors.
        """
        if self.current is not None:
            raise MoveRefused(f"{self.current} has not ended: one home of a job moves at a time")
        if executor not in self.world.open:
            raise MoveRefused(f"{executor} has finished: its home does not move any more")
        if self.world.tier.groups_at(self.world.node_of(executor), executor.component) is not None:
            raise MoveRefused(f"the key groups of {executor} move between executors: its home does not move")
        self._next_table(executor, target)
        self.current = HomeMove(executor, self.world.node_of(executor), target)
        self.world.spawn(f"{self.current}", self._start(self.current), self.current.source)

    def _start(self, move: HomeMove) -> FiberSteps:
        # The executor may have finished meanwhile.
        if not move.has_ended:
            yield from self._act(move, move.handle(HomeEvent.STARTED))

    def _next_table(self, executor: ExecutorId, target: int) -> HomeTable:
        name = executor.component
        table = self._tables.get(name) or HomeTable.initial(self.world.placement.homes[name])
        return table.moved(executor.index, target)

    @property
    def is_bound(self) -> bool:
        """Whether a move goes on without which the job does not: no checkpoint begins then."""
        return self.current is not None and self.current.phase not in (HomePhase.REQUESTED, HomePhase.COPYING)

    @property
    def targets(self) -> set[int]:
        """The node that is about to be a home; one to which state is copied may still be lost."""
        return {self.current.target} if self.current is not None and self.is_bound else set()

    def lost(self, home_node: int, node: int) -> None:
        """Note that a home has lost a node to which it may be copying state."""
        move = self.current
        if move is not None and not self.is_bound and (move.source, move.target) == (home_node, node):
            self.world.spawn(f"{move} is cancelled", self._cancel(move), home_node)

    def _cancel(self, move: HomeMove) -> FiberSteps:
        if not move.has_ended:
            self.happened["lost while copying"] += 1
            yield from self._act(move, move.handle(HomeEvent.HOME_LOST))

    def nodes(self) -> list[int]:
        """Return the nodes that host an instance, or are about to."""
        world = self.world
        hosting = {node for homes in world.placement.homes.values() for node in homes}
        return sorted(hosting | {home.executor.home for home in world.homes.values()} | self.targets)

    # what the other parts of the job ask

    def admits(self, node: int, target: ExecutorId, origin: ExecutorId, item: Item) -> bool:
        """Whether an executor handles an item at a node now; at its new home it is held until the executor is there.

        Raises
        ------
        ProtocolError
            If the node is neither the executor's home nor about to be.
        """
        to, arrival = self._arrivals.get(target, (None, None))
        if node == to and arrival is not None:
            admitted = arrival.admit((origin, item))
            self.happened["held"] += not admitted
            return admitted
        if node != self.world.node_of(target):
            raise ProtocolError(f"{target} got {item} from {origin} on node {node}, where its home is not")
        return True

    def takes_credit(self, node: int, origin: ExecutorId) -> bool:
        """Whether credit that reaches a node is of use there; otherwise it is lost."""
        move = self.current
        if move is not None and move.executor == origin and node == move.target:
            return True
        has_left = move is not None and move.executor == origin and move.phase is HomePhase.HANDING_OVER
        return node == self.world.node_of(origin) and not has_left

    def has_ended(self, executor: ExecutorId) -> FiberSteps:
        """Note that an executor has finished; at its new home this is no matter of the move any more."""
        move = self.current
        if move is not None and move.executor == executor and self.world.node_of(executor) == move.source:
            yield from self._step(HomeEvent.INPUTS_ENDED)

    def drained(self, executor: ExecutorId) -> FiberSteps:
        """Note that nothing is in flight in an executor, whose inputs have all sent their end marks."""
        assert self.current is not None, f"{executor} left its home without a move"
        yield from self._step(HomeEvent.DRAINED)

    # the protocol

    def receive(self, node: int, packet: HomePacket) -> FiberSteps:
        """Handle a packet at a node."""
        match packet:
            case Copied():
                self.copies.install(node, self.world.node_of(packet.executor), packet)
            case Taken():
                self.copies.taken(packet)
            case Dropped():
                self.copies.drop(node, packet)
            case Prepare(executor):
                self._arrivals[executor] = node, Arrival()
                self._inform(node)
                self._send(node, self.world.node_of(executor), Prepared(executor))
            case Prepared():
                # The executor may have finished meanwhile.
                if self.current is not None and self.current.executor == packet.executor:
                    yield from self._step(HomeEvent.PREPARED)
            case Switch(component, table):
                yield from self._switch(node, component, table)
            case Fence(executor, home):
                self.world.tier.set_emitter(node, executor, home)
                self._send(node, self.world.node_of(executor), FencePassed(executor, node))
            case FencePassed(_, sender):
                assert self.current is not None
                yield from self._act(self.current, self.current.passed(sender))
            case HandedOver():
                self.world.spawn(f"{packet.executor} arrives", self._install(node, packet), node)
            case Installed():
                yield from self._step(HomeEvent.INSTALLED)
        yield None

    def _send(self, source: int, node: int, packet: HomePacket) -> None:
        """Send a packet; a node sends to itself behind all that it has handled."""
        if source == node:
            self.world.spawn(f"node {node}", self.receive(node, packet), node)
        else:
            self.world.network.send(source, node, packet)

    def _copied(self) -> FiberSteps:
        move = self.current
        assert move is not None
        # An outage that was not noticed yet may end with a loss.
        yield from self._step(HomeEvent.HOME_LOST if self.world.outages[move.target] else HomeEvent.COPIED)

    def _step(self, event: HomeEvent) -> FiberSteps:
        move = self.current
        assert move is not None
        yield from self._act(move, move.handle(event))

    def _act(self, move: HomeMove, action: HomeAction) -> FiberSteps:
        self.world.record("{}: {}", move, action.name)
        match action:
            case HomeAction.COPY:
                self.world.spawn(f"{move} copies", self.copies.copy(move, self._copied), move.source)
            case HomeAction.PREPARE:
                self.begins()
                self._send(move.source, move.target, Prepare(move.executor))
            case HomeAction.SWITCH:
                self._switch_all(move.executor, move.source, move.target)
            case HomeAction.FENCE:
                nodes = self.nodes()
                move.fence(nodes)
                for node in nodes:
                    self._send(move.source, node, Fence(move.executor, move.target))
                self.copies.finish(move)
            case HomeAction.HAND_OVER:
                home = self.world.homes[move.executor]
                handover, cores = home.driver.handover(*self.copies.last()), home.executor.cores.by_node()
                given = HandedOver(move.executor, *handover, cores)
                self._send(move.source, move.target, given)
            case HomeAction.CANCEL:
                self.copies.cancel(move)
                if move.executor.component in self._tables and self._switched(move):
                    self._switch_all(move.executor, move.source, move.source)
                self._end("cancelled")
            case HomeAction.CLOSE:
                self._end("moved")
        yield None

    def _switched(self, move: HomeMove) -> bool:
        return self._tables[move.executor.component].homes[move.executor.index] == move.target

    def _end(self, how: str) -> None:
        self.happened[how] += 1
        self.current = None

    def _inform(self, node: int) -> None:
        """Let a node that becomes a home see earlier moves as the others do."""
        for component, table in self._tables.items():
            self.world.tier.set_table(node, component, table)
        for identity, home in self.world.homes.items():
            self.world.tier.set_emitter(node, identity, home.executor.home)

    def _switch_all(self, executor: ExecutorId, source: int, target: int) -> None:
        table = self._tables[executor.component] = self._next_table(executor, target)
        for node in self.nodes():
            self._send(source, node, Switch(executor.component, table))

    def _switch(self, node: int, component: str, table: HomeTable) -> FiberSteps:
        world = self.world
        upstream = [i for name in world.components[component].inputs for i in world.placement.instances(name)]
        here = [(i, world.tier.sends(i, node, component)) for i in upstream if world.node_of(i) == node]
        world.tier.set_table(node, component, table)
        for origin, sends in here:
            yield from world.send_marks(origin, component, sends.switch(table))

    def _install(self, node: int, given: HandedOver) -> FiberSteps:
        """Let an executor continue at its new home."""
        world, identity, handover = self.world, given.executor, given.handover
        before = world.homes[identity]
        if (known := world.remotes.pop((node, identity), None)) is not None:
            known.close()
        first = {node: max(1, given.cores.get(node, 0))}
        store = handover.state(self.copies.arrived(node, identity))
        check_same_state(identity, before.executor.store, store)
        executor = make_executor(world, before.component, identity, node, first, store)
        handover.install(executor)
        executor.store.track_dirty = True
        executor.newest_change = given.newest_change
        home = world.homes[identity] = ExecutorFibers(world, executor, before.component)
        home.flushes |= before.flushes
        home.flushes |= {*handover.flushes}
        world.tier.restart(identity)
        yield from home.drive(home.driver.resume(given.over, given.newest_change))
        for lost in sorted(guest for home_node, guest in world.given_up if home_node == node):
            home.driver.node_left(lost, died=False)
        home.start_clock()
        for origin, item in self._arrivals[identity][1].released():
            yield from home.take(origin, item)
        world.command(identity, events.SetCores(given.cores), refused=self._refused)
        self._send(node, before.executor.home, Installed(identity))

    def _refused(self, error: ElasticError) -> None:
        # A node of the old cores may be lost.
        self.happened["cores refused"] += 1
