"""Hosts the driver of one executor on fibers of the simulation."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.drivers.executor_driver import ControlRecord
from dask_elastic.executor.drivers.home_driver import HomeDriver
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import Haste
from dask_elastic.executor.piece import Block
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.union_types import union_types
from dask_elastic.simulator.fiber import Bell, Condition, FiberLock, FiberSteps, NoFiberLock
from dask_elastic.simulator.surroundings import Surroundings
from dask_elastic.topology.component import Component
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import TimersDue
from dask_elastic.vocab.watermark import Watermark

MOST_TORN_STEPS = 40
"""With `WorldOptions.torn`, up to this many steps of other fibers run before a message is sent."""


class FollowedExecutor(ElasticExecutor):
    """An executor that enters its rows, state records and watermarks in the ledgers of a world."""

    world: Surroundings
    newest_change = 0

    @property
    def addressed(self) -> Collection[int]:
        """The shards to which state records are addressed."""
        return range(self.routes.space.shards)

    def accept(self, block: Block, origin: ExecutorId, batch: Batch, nbytes: int, now: float) -> list[do.Instruction]:
        """Enter the rows in the ledger, then take them in."""
        self.world.ledger.accepted(self.identity, batch)
        if self.records.clocks:
            self.world.record_ledger.accepted(self.identity, batch, self.routes.space)
        self.world.event_times.check(self.inputs, origin, batch.rows)
        return super().accept(block, origin, batch, nbytes, now)

    def done(
        self, task: int, number: int, busy: float, now: float, waited: float = 0.0, counts: tuple[int, ...] = ()
    ) -> list[do.Instruction]:
        """Enter the rows as processed in the ledger, then settle them; rows of a lost task are not entered."""
        known = self.routes.tasks.get(task)
        if known is not None:
            work = known.in_flight[number]
            if self.records.clocks:
                self.world.record_ledger.settled(self.identity, work, self.routes.space)
            if work.record is None:
                self.world.ledger.settled(self.identity, work)
        return super().done(task, number, busy, now, waited, counts)

    def _enter(self, record: TimersDue | None, now: float) -> list[do.Instruction]:
        """Enter the record in the ledger, then route it."""
        if record is not None:
            self.world.record("state record {}", record)
            self.world.record_ledger.entered(self.identity, record, self.routes.space, self.addressed)
        return super()._enter(record, now)

    def handle(self, event: events.Event, now: float) -> list[do.Instruction]:
        """Note the event in the history, then handle it."""
        self.world.record("{}", event)
        match event:
            case events.InputWatermark(watermark):
                self.world.event_times.note(self.inputs, watermark)
            case events.SetCores(NumberedCores() as cores):
                self._check_change(cores.change)
        instructions = super().handle(event, now)
        for instruction in instructions:
            self.world.record("{}", instruction)
        return instructions

    def _check_change(self, change: int) -> None:
        if change <= self.newest_change:
            raise ProtocolError(f"{self.identity}: core change {change} was applied after {self.newest_change}")
        self.newest_change = change


class NumberedCores(dict[int, int]):
    """Cores by node, with the number of the change that asks for them."""

    def __init__(self, cores: Mapping[int, int], change: int):
        super().__init__(cores)
        self.change = change


class ExecutorFibers:
    """One elastic executor at its home: its driver, and the fibers and channels that the driver asks for.

    Parameters
    ----------
    world : Surroundings
        Delivers, returns credit, and keeps the ledger.
    executor : FollowedExecutor
        The executor.
    component : Component
        What it runs.

    Attributes
    ----------
    flushes : set of int
        Tokens of the flush requests that were answered.
    """

    def __init__(self, world: Surroundings, executor: FollowedExecutor, component: Component):
        self.world = world
        self.executor = executor
        self.component = component
        self.identity = executor.identity
        self.flushes: set[int] = set()
        self.left = 0
        executor.world = world
        executor.store.union = union_types(component, world.components)
        self.driver = self._make_driver()

    def _make_driver(self) -> HomeDriver:
        return HomeDriver(self.executor, self)

    # entrances, each run by the calling fiber

    def begin(self) -> None:
        """Start the first tasks; nothing else runs yet."""
        for _ in self.drive(self.driver.start()):
            pass
        self.start_clock()

    def start_clock(self) -> None:
        """Let timers in processing time fire from now on."""
        if "processing" in self.executor.records.clocks:
            self.world.spawn(f"{self.identity} clock", self._tick())

    def _tick(self) -> FiberSteps:
        """Let timers in processing time fire, until the input has ended."""
        is_open = self.executor.inputs.open
        while is_open and not self.ended:
            yield partial(self._is_over, self.world.now + self.world.options.tick)
            if is_open and not self.ended:
                yield from self.handle(events.ClockTicked())

    def _is_over(self, time: float) -> bool:
        return self.world.now >= time or not self.executor.inputs.open or self.ended

    def take(self, origin: ExecutorId, item: tuple[Batch, int] | ControlRecord) -> FiberSteps:
        """Take what an upstream instance has sent."""
        if isinstance(item, tuple):
            yield from self.offer(origin, *item)
        else:
            yield from self.receive_record(origin, item)

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> FiberSteps:
        """Take a batch."""
        yield from self.drive(self.driver.offer(origin, batch, nbytes))

    def handle(self, event: events.Event) -> FiberSteps:
        """Let the executor handle an event."""
        yield from self.drive(self.driver.handle(event))

    def set_cores(self, change: int, cores: Mapping[int, int]) -> FiberSteps:
        """Change the executor's cores; see `ExecutorDriver.set_cores`."""
        yield from self.drive(self.driver.set_cores(change, NumberedCores(cores, change)))

    def receive_record(self, origin: ExecutorId, record: ControlRecord) -> FiberSteps:
        """Take a control record of an upstream instance."""
        yield from self.drive(self.driver.receive_record(origin, record))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is held for a checkpoint."""
        return self.driver.is_quiet

    def begin_checkpoint(self, checkpoint: int) -> FiberSteps:
        """Begin a checkpoint."""
        yield from self.drive(self.driver.begin_checkpoint(checkpoint))

    def abandon_checkpoint(self, checkpoint: int) -> FiberSteps:
        """Give up a checkpoint."""
        yield from self.drive(self.driver.abandon_checkpoint(checkpoint))

    def receive(self, node: int, stamp: m.Stamp, message: m.ToHome) -> FiberSteps:
        """Take a message of a remote task, unless it is stale or a repetition."""
        if self.executor.links.admit(node, stamp):
            yield from self.drive(self.driver.receive(message))

    def drive(self, steps: Steps[None]) -> FiberSteps:
        """Run steps of the driver; the world checks the executor after each."""
        yield from self.world.drive(steps, self.identity)

    # what the driver asks for (ExecutorHost)

    @property
    def ended(self) -> bool:
        """Whether the executor has left this home; simulated jobs end by themselves."""
        return self.driver.departed

    def now(self) -> float:
        """Return the virtual time."""
        return self.world.now

    def bell(self) -> Bell:
        """Make a bell."""
        return Bell()

    def lock(self) -> FiberLock:
        """Make the lock that serialises events and their instructions; with `WorldOptions.torn` it does nothing."""
        return (NoFiberLock if self.world.options.torn else FiberLock)(self.world.schedule.running)

    def start(self, name: str, steps: Steps[None]) -> None:
        """Run steps in a fiber of their own."""
        self.world.spawn(f"{self.identity} {name}", self.drive(steps), self.executor.home)

    def rest(self, seconds: float) -> None:
        """Let other fibers go on, as each act does."""

    def processor(self, task: int) -> AbstractContextManager[Processor]:
        """Return the logic of a task."""
        sinks = self.world.placement.node_of(self.identity)
        return closing(self.world.processor(self.component, task, self.executor.store, sinks))

    def process(self, processor: Processor, batch: Batch) -> tuple[list[Delivery], float]:
        """Process a batch in one step; its busy seconds are drawn."""
        return processor.process(batch), self.world.busy(batch.rows.num_rows)

    def send(self, node: int, message: m.ToRemote) -> Generator[Condition | None, None, bool]:
        """Send a message to a remote task."""
        if self.world.options.torn:
            for _ in range(1 + int(MOST_TORN_STEPS * self.world.schedule.draw())):
                yield None
        if not self.world.network.is_connected(self.executor.home, node):
            return False
        stamp = self.executor.links.stamp(message.task)
        if stamp is not None:
            self.world.send_message(self.executor.home, node, self.identity, stamp, message)
        return True

    def defer(self, steps: Steps[None]) -> bool:
        """Let the caller carry out the run, like one that was deferred: other fibers come between."""
        return self.leave(steps)

    def leave(self, steps: Steps[None]) -> bool:
        """Let another fiber carry out the steps, with the probability `WorldOptions.leaves`; else the caller does."""
        leaves = self.world.options.leaves
        if not leaves or self.world.schedule.draw() >= leaves:
            return False
        self.left += 1
        self.start("left", steps)
        return True

    def leave_run(self, steps: Steps[None]) -> bool:
        """Let another fiber carry out brief work, like a run that was left."""
        return self.leave(steps)

    def haste(self) -> Haste:
        """Return how long the caller may run a task: a fiber has time."""
        return Haste.BRINGS

    def deliver(self, deliveries: Iterable[Delivery]) -> FiberSteps:
        """Deliver outputs; waits while the receivers' credit is used up."""
        yield from self.world.deliver(self.identity, deliveries)

    def deliver_now(self, deliveries: Sequence[Delivery]) -> Generator[Condition | None, None, Sequence[Delivery]]:
        """Deliver outputs as long as there is credit; returns the others."""
        return (yield from self.world.deliver_now(self.identity, deliveries))

    def release(self, origin: ExecutorId, nbytes: int, wanted_more: bool = False, is_part: bool = False) -> None:
        """Return credit to an upstream instance; simulated windows do not adapt."""
        self.world.release(origin, self.identity, nbytes)

    def emit_watermark(self, watermark: Watermark) -> FiberSteps:
        """Send a watermark to the next receivers."""
        yield from self.world.emit_watermark(watermark)

    def cut(self, checkpoint: int) -> None:
        """Copy the state for a checkpoint."""
        self.world.record("{} is cut for checkpoint {}", self.identity, checkpoint)
        self.world.checkpoints.cut(checkpoint, self.identity, self.executor.store)

    def emit_barrier(self, barrier: Barrier) -> FiberSteps:
        """Send a barrier to the next receivers."""
        yield from self.world.emit_barrier(barrier)

    def finished(self) -> FiberSteps:
        """Tell the next receivers that the executor has delivered its last output."""
        yield from self.world.instance_ended(self.identity)

    def depart(self) -> FiberSteps:
        """Hand the executor over to its new home."""
        yield from self.world.depart(self.identity)

    def pass_on(self, event: events.Event) -> FiberSteps:
        """Let the executor handle an event at its new home, once it is there."""
        yield from self.world.pass_on(self.identity, event)

    def flushed(self, token: int) -> None:
        """Note that a flush request was answered."""
        self.flushes.add(token)
