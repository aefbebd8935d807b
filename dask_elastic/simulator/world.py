"""A whole job on a virtual clock: nodes, channels, sources, executors, remote tasks and sinks, in one thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from types import GeneratorType
from typing import Any

import numpy as np

from dask_elastic.executor import events
from dask_elastic.executor.control_records.inputs import timed_components
from dask_elastic.executor.control_records.source_clock import SourceClock
from dask_elastic.executor.drivers.executor_driver import ControlRecord
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.error_policy import ErrorPolicy, FailedRows
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.remote import RemotePart
from dask_elastic.meters.edge_rows import EdgeRows
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.simulator.checkpoints import CheckpointParts, SimulatedCheckpoint
from dask_elastic.simulator.credit import Credits
from dask_elastic.simulator.deliveries import Deliveries
from dask_elastic.simulator.event_times import EventTimes
from dask_elastic.simulator.executor_fibers import ExecutorFibers
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.groups.group_moves import GroupMoves
from dask_elastic.simulator.groups.packets import GroupFence, GroupFencePassed
from dask_elastic.simulator.homes.first_tier import FirstTier
from dask_elastic.simulator.homes.home_moves import HomeMoves
from dask_elastic.simulator.instances import Durability, build_instances
from dask_elastic.simulator.invariants import Invariants
from dask_elastic.simulator.ledger import Ledger
from dask_elastic.simulator.network import Credit, Message, Network, Packet, Sent
from dask_elastic.simulator.placement import Placement
from dask_elastic.simulator.record_ledger import RecordLedger
from dask_elastic.simulator.remote_fibers import RemoteFibers
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.simulator.sink import SimulatedSink
from dask_elastic.simulator.source import SimulatedSource
from dask_elastic.simulator.world_options import WorldOptions
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import Compute, SinkOperator
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.errors import ElasticError, MoveRefused, PlanningError, ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import NoLock
from dask_elastic.vocab.messages import Done, Flush, LabelReturned, Outputs, Stamp, StartTask, ToHome, ToRemote
from dask_elastic.vocab.watermark import Watermark


class World(Deliveries):
    """Runs components as a job would, one step of one fiber at a time.

    Parameters
    ----------
    components : sequence of Component
        The components of a topology.
    placement : Placement
        Where its instances are.
    random : numpy.random.Generator
        The source of all randomness; the same generator gives the same run.
    options : WorldOptions, optional
        How it runs.
    restore : SimulatedCheckpoint, optional
        Where it begins.
    durability : Durability, optional
        What becomes of its checkpoints.

    Notes
    -----
    The code between two yields of a fiber is atomic, so locks that are not held across a yield are `NoLock`. Drivers
    hold their control locks across yields; these are `FiberLock`.
    """

    def __init__(
        self,
        components: Sequence[Component],
        placement: Placement,
        random: np.random.Generator,
        options: WorldOptions | None = None,
        restore: SimulatedCheckpoint | None = None,
        durability: Durability | None = None,
    ):
        self.restore = restore or SimulatedCheckpoint(0)
        self.durability = durability or Durability()
        self.checkpoints: CheckpointParts = self.durability.parts
        self.sources: dict[ExecutorId, SimulatedSource] = {}
        self.options = options or WorldOptions()
        self.placement = placement
        self.components = {component.name: component for component in components}
        self.schedule = Schedule(random, self.options.step_seconds, self.options.history, self.options.pauses)
        self.given_up: set[tuple[int, int]] = set()
        self.outages: Counter[int] = Counter()
        self.network = Network(self.schedule, self._receive, self.options.repeats)
        self.ledger = Ledger(self.options.order)
        self.record_ledger = RecordLedger()
        self.event_times = EventTimes(self.options.event_time)
        self.timed = timed_components(components)
        self.dead_letters: list[FailedRows] = []
        self.edge_rows = EdgeRows(nullcontext())
        self.homes: dict[ExecutorId, ExecutorFibers] = {}
        self.remotes: dict[tuple[int, ExecutorId], RemoteFibers] = {}
        self._parts_of: dict[ExecutorId, dict[int, RemotePart]] = {}
        self.sinks: dict[ExecutorId, SimulatedSink] = {}
        self.credits: dict[tuple[ExecutorId, ExecutorId], Credits] = {}
        self.touched: set[ExecutorId] = set()
        self.invariants = Invariants(states=self.options.pauses > 0)
        self._changes: Counter[ExecutorId] = Counter()
        self.open: set[ExecutorId] = set()
        self.spaces = {
            name: KeySpace.of_groups(component.operator.shards)
            if self.options.resource_centric
            else KeySpace(len(placement.homes[name]), component.operator.shards)
            for name, component in self.components.items()
            if isinstance(component.operator, Compute)
        }
        self.tier = FirstTier(placement, self._first_groups() if self.options.resource_centric else {})
        self.moves = HomeMoves(self)
        self.groups = GroupMoves(self)
        for component in components:
            build_instances(self, component)
        for identity, home in self.homes.items():
            home.begin()
            if identity in self.restore.executors:
                cores = placement.cores[identity.component][identity.index]
                # A node may be lost before it gets its task.
                self.command(identity, events.SetCores(cores), refused=lambda error: None)

    # building

    def _first_groups(self) -> dict[str, GroupTable]:
        """Return which executor owns which key groups in the beginning: as at the checkpoint, if there is one."""
        owned: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name in self.spaces}
        for (name, index), cut in self.restore.executors.items():
            if name in owned and cut.groups is not None:
                owned[name][index] = cut.groups
        homes = self.placement.homes
        return {
            name: GroupTable.of_parts(space.shards, homes[name], owned[name]) for name, space in self.spaces.items()
        }

    def processor(self, component: Component, task: int, store: ComponentStore, home: int) -> Processor:
        """Return the logic of a task."""
        tables = partial(self.tier.groups_at, home)
        made = Processor(component, task, store, self.spaces, self.error_policy(), home, tables)
        self.edge_rows.join(made.emitter.edge_rows)
        return made

    def error_policy(self) -> ErrorPolicy:
        """Return what happens to rows on which user code fails."""
        return ErrorPolicy(self.options.on_error, self.dead_letters.append)

    # surroundings of the parts

    @property
    def clocks(self) -> dict[ExecutorId, SourceClock]:
        """The clocks of the sources with event time."""
        return {identity: source.clock for identity, source in self.sources.items() if source.clock is not None}

    @property
    def now(self) -> float:
        """The virtual time, seconds."""
        return self.schedule.now

    @property
    def finished(self) -> bool:
        """Whether every source, executor and sink has ended by itself."""
        return not self.open

    @property
    def is_moving(self) -> bool:
        """Whether a home or key groups move."""
        return self.moves.current is not None or self.groups.current is not None

    @property
    def is_bound(self) -> bool:
        """Whether a move goes on without which the job does not: no checkpoint begins then."""
        return self.moves.is_bound or self.groups.current is not None

    def spawn(self, name: str, steps: FiberSteps, node: int | None = None) -> None:
        """Add a fiber; one that belongs to a node is stopped and lost with it."""
        self.schedule.spawn(name, steps, node)

    def drive(self, steps: Steps[None], executor: ExecutorId) -> FiberSteps:
        """Run the steps of an executor's driver in the calling fiber; others may run before each act.

        Parameters
        ----------
        steps : generator
            The driver's steps.
        executor : ExecutorId
            The executor; `step` checks its invariants after each of them.
        """
        result: Any = None
        try:
            while True:
                act = steps.send(result)
                self.touched.add(executor)
                yield None
                result = act()
                if isinstance(result, GeneratorType):
                    result = yield from result
        except StopIteration:
            self.touched.add(executor)
        finally:
            steps.close()

    def record(self, what: str, *values: object) -> None:
        """Add an entry to the history."""
        self.schedule.record(what, *values)

    def busy(self, rows: int) -> float:
        """Draw the seconds for which a number of rows keeps a core busy."""
        return self.options.row_seconds * rows * (0.5 + self.schedule.draw())

    def node_of(self, instance: ExecutorId) -> int:
        """Return the node of an instance; an executor may have moved."""
        home = self.homes.get(instance)
        return self.placement.node_of(instance) if home is None else home.executor.home

    def bring(self, source: int, node: int, sent: Sent) -> FiberSteps:
        """Bring what an instance sends to a node."""
        if not isinstance(sent.item, tuple):
            self.record("{} to {}", sent.item, sent.target)
        if node == source:
            yield from self._take(node, sent)
        else:
            self.network.send(source, node, sent)
            yield None

    def _take(self, node: int, sent: Sent) -> FiberSteps:
        target, origin, item = sent.target, sent.origin, sent.item
        if (sink := self.sinks.get(target)) is not None:
            sink.take(origin, item)
        elif self.moves.admits(node, target, origin, item):
            yield from self.homes[target].take(origin, item)

    def send_message(
        self, source: int, target: int, executor: ExecutorId, stamp: Stamp, message: ToRemote | ToHome
    ) -> None:
        """Send a message between an executor's home and its remote tasks."""
        self.network.send(source, target, Message(executor, source, stamp, message))

    def instance_ended(self, identity: ExecutorId) -> FiberSteps:
        """Tell the next receivers that an instance has delivered its last batch."""
        self.record("{} has ended", identity)
        self.open.discard(identity)
        for _, targets in groupby(self._next(identity), key=lambda target: target.component):
            yield from self._send([*targets], identity, events.InputEnded(identity))
        yield from self.moves.has_ended(identity)

    def emit_watermark(self, watermark: Watermark) -> FiberSteps:
        """Send a watermark to the next receivers, behind what its origin has delivered."""
        yield from self._send_all(watermark.origin, events.InputWatermark(watermark))

    def emit_barrier(self, barrier: Barrier) -> FiberSteps:
        """Send a barrier to the next receivers, behind what its origin has delivered."""
        yield from self._send_all(barrier.origin, barrier)

    def _send_all(self, origin: ExecutorId, record: ControlRecord) -> FiberSteps:
        for target in self._next(origin):
            yield from self._send([target], origin, record)

    def depart(self, executor: ExecutorId) -> FiberSteps:
        """Hand an executor that is drained over to its new home."""
        yield from self.moves.drained(executor)

    def pass_on(self, executor: ExecutorId, event: events.Event) -> FiberSteps:
        """Let an executor handle an event at its new home, once it is there."""
        yield lambda: not self.homes[executor].ended
        if isinstance(event, events.CheckpointAbandoned):
            yield from self.homes[executor].abandon_checkpoint(event.checkpoint)
        else:
            yield from self.homes[executor].handle(event)

    def _next(self, identity: ExecutorId) -> Iterator[ExecutorId]:
        """Yield the receivers of an instance's outputs; sinks stay where the homes were in the beginning."""
        for name in dict.fromkeys(exit_.target for exit_ in self.components[identity.component].exits):
            if isinstance(self.components[name].operator, SinkOperator):
                yield ExecutorId(name, self.placement.node_of(identity))
            else:
                yield from self.placement.instances(name)

    def _receive(self, node: int, packet: Packet) -> FiberSteps:
        match packet:
            case Sent():
                yield from self._take(node, packet)
            case Credit(target, origin, nbytes):
                if self.moves.takes_credit(node, origin):
                    self._credit(origin, target).release(nbytes)
            case Message():
                yield from self._receive_message(node, packet)
            case GroupFence() | GroupFencePassed():
                yield from self.groups.receive(node, packet)
            case _:
                yield from self.moves.receive(node, packet)

    def _receive_message(self, node: int, packet: Message) -> FiberSteps:
        executor, message = packet.executor, packet.message
        at_home = node == self.node_of(executor)
        if isinstance(message, Outputs | Done | Flush | LabelReturned):
            # A home that the executor has left ignores what its tasks send.
            if at_home:
                yield from self.homes[executor].receive(packet.sender, packet.stamp, message)
            return
        if at_home:
            return
        known = self.remotes.get((node, executor))
        if isinstance(message, StartTask) and (known is None or packet.stamp.incarnation > known.part.incarnation):
            if known is not None:
                known.close()
            name = executor.component
            part = RemotePart(executor, self.spaces[name], NoLock, packet.stamp.incarnation, self.options.limits)
            self._parts_of.setdefault(executor, {})[node] = part
            known = self.remotes[node, executor] = RemoteFibers(self, part, self.components[name], node, packet.sender)
        if known is None:
            raise ProtocolError(f"{executor} has no task on node {node} yet, but {message} came")
        yield from known.receive(packet.stamp, message)

    # commands

    def command(
        self, executor: ExecutorId, event: events.Event, refused: Callable[[ElasticError], None] | None = None
    ) -> None:
        """Let an executor handle an event, in a fiber of its own.

        Parameters
        ----------
        executor : ExecutorId
            The executor.
        event : Event
            Such as `MoveShard`, `BalanceDue` or `FlushDue`.
        refused : callable, optional
            Takes the error if the executor refuses the command; without it the error ends the run.
        """
        steps = self._command(self.homes[executor].handle(event), refused)
        self.spawn(f"{executor} command", steps, self.node_of(executor))

    def set_cores(
        self, executor: ExecutorId, cores: Mapping[int, int], refused: Callable[[ElasticError], None] | None = None
    ) -> None:
        """Change an executor's cores in a fiber of its own; a change that a newer one has overtaken is refused."""
        self._changes[executor] += 1
        steps = self.homes[executor].set_cores(self._changes[executor], cores)
        self.spawn(f"{executor} command", self._command(steps, refused), self.placement.node_of(executor))

    def _command(self, steps: FiberSteps, refused: Callable[[ElasticError], None] | None) -> FiberSteps:
        try:
            yield from steps
        except (MoveRefused, PlanningError) as error:
            if refused is None:
                raise
            refused(error)

    def flush_remote_tasks(self) -> None:
        """Let all remote tasks send their dirty state home, as they do periodically."""
        for remote in self.remotes.values():
            self.spawn(f"{remote.part.identity} flush", self._flush(remote), remote.node)

    def _flush(self, remote: RemoteFibers) -> FiberSteps:
        yield None
        remote.driver.flush_due()

    def step(self) -> bool:
        """Run one step and check the invariants; return whether a fiber could run."""
        self.touched.clear()
        more = self.schedule.step()
        if self.options.check:
            for identity in self.touched:
                self.invariants.check(self.homes[identity].executor, self._parts(identity))
        return more

    def _parts(self, identity: ExecutorId) -> list[RemotePart]:
        """Return an executor's remote parts, without those that either side has given up."""
        links = self.homes[identity].executor.links
        parts = self._parts_of.get(identity, {}).items()
        return [part for node, part in parts if not part.closed and part.incarnation == links.incarnation(node)]

    def run(self, disturb: Callable[[World], None] | None = None) -> None:
        """Run to the end.

        Parameters
        ----------
        disturb : callable, optional
            Called before each step; it may command executors.

        Raises
        ------
        ProtocolError
            If an invariant is broken, or no fiber can run although the job has not ended.
        """
        while True:
            if disturb is not None and not self.finished:
                disturb(self)
            if not self.step():
                break
        self.check_end()

    def check_end(self) -> None:
        """Check that nothing is left when no fiber can run any more; see `run`."""
        if self.open:
            waiting = ", ".join(sorted(self.schedule.waiting()))
            raise ProtocolError(
                f"no fiber can run, but {', '.join(map(str, sorted(self.open)))} have not ended; these wait: {waiting}"
            )
        self.ledger.check_complete()
        self.record_ledger.check_complete()
        for (origin, target), credit in self.credits.items():
            if credit.used:
                raise ProtocolError(f"{target} never returned {credit.used} bytes of credit to {origin}")
            if credit.peak > credit.window + credit.largest:
                raise ProtocolError(
                    f"{credit.peak} bytes were in flight from {origin} to {target}, whose window is {credit.window}"
                )
        for home in self.homes.values():
            if len(home.executor.moves):
                raise ProtocolError(f"{home.identity}: moves of {sorted(home.executor.moves.targets())} never ended")
        if self.is_moving:
            raise ProtocolError(f"{self.moves.current or self.groups.current} never ended")
