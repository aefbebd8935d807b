"""The home of an executor in the simulation: its tasks, the feeders of its remote tasks, and the way back from those.

Notes
-----
Each method that a thread of the real driver would run is a generator here; it yields wherever another thread could
come between. What the executor asks for besides wakes and credit is carried out in the order in which it asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.task_queue import LabelItem, StopItem, Work
from dask_elastic.simulator.fiber import Bell, Steps
from dask_elastic.topology.component import Component
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from dask_elastic.simulator.world import World

MOST_TORN_STEPS = 40
"""Where instructions of one event are torn apart, so many steps may come between two of them."""


class SimulatedHome:
    """Drives one elastic executor at its home node.

    Parameters
    ----------
    world : World
        It delivers, gives credit back, and keeps the ledger.
    executor : ElasticExecutor
        The executor.
    component : Component
        What it runs.
    """

    def __init__(self, world: World, executor: ElasticExecutor, component: Component):
        self.world = world
        self.executor = executor
        self.component = component
        self.identity = executor.identity
        self.flushed: set[int] = set()
        self._bells: dict[int, Bell] = {}
        self._feeders: set[int] = set()
        self._returns: deque[m.ToHome | events.NodeGone | events.NodeBack] = deque()
        self._returning = False

    # entrances

    def start(self) -> None:
        """Start the first tasks."""
        for instruction in self.executor.start():
            self._order(instruction)

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> Steps:
        """Bring a batch; others may change the routing between the split and the queues."""
        self.world.ledger.accepted(self.identity, batch)
        block = self.executor.split(batch)
        yield None
        self.world.event_times.arrives(self.executor.inputs, origin, batch.rows)
        yield from self.carry_out(self.executor.accept(block, origin, batch, nbytes, self.world.now))

    def handle(self, event: events.Event) -> Steps:
        """Tell the executor of an event."""
        self.world.say("{}", event)
        yield from self.carry_out(self.executor.handle(event, self.world.now))

    def hear(self, said: Watermark) -> None:
        """Take what an upstream instance says of event time; it is passed on before the next batch comes."""
        self.world.say("{}", said)
        self.world.event_times.hears(self.executor.inputs, said)
        for instruction in self.executor.handle(events.InputWatermark(said), self.world.now):
            self._order(instruction)

    def receive(self, node: int, stamp: m.Stamp, message: m.ToHome) -> None:
        """Take a message of a remote task; a fiber of its own handles it, since its outputs may have to wait."""
        if self.executor.links.admit(node, stamp):
            self._returns.append(message)

    def outage(self, event: events.NodeGone | events.NodeBack) -> None:
        """Learn that a node is lost, or back; behind what the emitter is about to emit."""
        if isinstance(event, events.NodeGone):
            self.executor.links.cut(event.node)
        self._returns.append(event)
        self._start_returns()

    # instructions

    def carry_out(self, instructions: Iterable[do.Instruction]) -> Steps:
        """Carry out what the executor asks for."""
        self.world.touched.add(self.identity)
        late: list[do.Wake | do.Release | do.EmitWatermark] = []
        for instruction in instructions:
            if isinstance(instruction, do.Wake | do.Release | do.EmitWatermark):
                late.append(instruction)
                continue
            if self.world.options.torn:
                yield from self._others()
            self._order(instruction)
        for instruction in late:
            yield None
            if isinstance(instruction, do.Wake):
                self._bells[instruction.task].ring()
            elif isinstance(instruction, do.EmitWatermark):
                self._order(instruction)
            else:
                self.world.release(instruction.origin, self.identity, instruction.nbytes)

    def _others(self) -> Steps:
        """Let others go on for a while: a single step would rarely let the one come between that matters."""
        for _ in range(1 + int(MOST_TORN_STEPS * self.world.schedule.draw())):
            yield None

    def _order(self, instruction: do.Instruction) -> None:
        self.world.say("{}", instruction)
        match instruction:
            case do.StartTask(task, node, shards):
                self._start_task(task, node, shards)
            case do.InstallState(shard, task, node, copy):
                state = self.executor.store.extract([shard]) if copy else None
                self._send(node, m.Install(task, shard, state))
                self.world.spawn(f"{self.identity} install {shard}", self.handle(events.StateInstalled(shard, task)))
            case do.RequestFlush(task, node, token, shard):
                self._send(node, m.FlushRequest(task, token, shard))
            case do.FlushComplete(token):
                self.flushed.add(token)
            case do.EmitWatermark():
                self._emit_watermark()
            case do.Finished():
                self._emit_watermark()
                self.world.instance_ended(self.identity)

    def _emit_watermark(self) -> None:
        said = self.executor.watermarks.take()
        if said is not None:
            self.world.emit_watermark(said)

    def _send(self, node: int, message: m.ToRemote) -> None:
        stamp = self.executor.links.stamp(message.task)
        if stamp is not None:
            self.world.send_message(self.executor.home, node, self.identity, stamp, message)

    def _outage(self, event: events.NodeGone | events.NodeBack) -> Steps:
        yield from self.handle(event)
        # Feeders of tasks that are lost see that they have nothing to do.
        for task in [task for task in self._feeders if task not in self.executor.routes.tasks]:
            self._feeders.discard(task)
            self._bells[task].ring()

    def _start_task(self, task: int, node: int, shards: tuple[int, ...]) -> None:
        self._bells[task] = Bell()
        if node == self.executor.home:
            self.world.spawn(f"{self.identity} task {task}", self._run_task(task))
            return
        self._send(node, m.StartTask(task, shards))
        self._start_returns()
        self._feeders.add(task)
        self.world.spawn(f"{self.identity} feeder {task}", self._run_feeder(task, node))

    def _start_returns(self) -> None:
        if not self._returning:
            self._returning = True
            self.world.spawn(f"{self.identity} emitter", self._run_returns())

    # fibers

    def _run_task(self, task: int) -> Steps:
        processor = self.world.processor(self.component, task, self.executor.store, self.executor.home)
        while True:
            taken = self.executor.take(task, self.world.now)
            if taken is None:
                yield from self._bells[task].wait()
                continue
            number, item = taken
            self.world.say("took {}", item)
            yield None
            match item:
                case Work():
                    yield from self._process(processor, task, number, item)
                case LabelItem(shard):
                    yield from self.handle(events.LabelBack(task, shard))
                case StopItem():
                    yield from self.handle(events.TaskEnded(task))
                    return

    def _process(self, processor: Processor, task: int, number: int, work: Work) -> Steps:
        deliveries = processor.process(work.batch())
        yield None
        if not work.silent:
            yield from self.world.deliver(self.identity, deliveries)
        yield from self._done(m.Done(task, number, self.world.busy(work.rows)))

    def _done(self, message: m.Done) -> Steps:
        task = self.executor.routes.tasks.get(message.task)
        if task is not None:
            self.world.ledger.settled(self.identity, task.in_flight[message.number])
        yield from self.carry_out(self.executor.take_back(message, self.world.now))

    def _run_feeder(self, task: int, node: int) -> Steps:
        while True:
            taken = self.executor.take(task, self.world.now)
            if task not in self.executor.routes.tasks:
                return
            if taken is None:
                yield from self._bells[task].wait()
                continue
            number, item = taken
            self.world.say("took {}", item)
            yield None
            match item:
                case Work():
                    self._send(node, m.SubBatch(task, number, item.batch(), item.silent))
                case LabelItem(shard, _, stays):
                    self._send(node, m.Label(task, shard, stays))
                case StopItem():
                    self._feeders.discard(task)
                    self._send(node, m.StopTask(task))
                    yield None
                    yield from self.handle(events.TaskEnded(task))
                    return

    def _run_returns(self) -> Steps:
        while True:
            yield lambda: bool(self._returns)
            message = self._returns.popleft()
            match message:
                case m.Outputs():
                    if self.executor.links.leaves(message):
                        yield from self.world.deliver(self.identity, message.deliveries)
                case m.Done():
                    yield from self._done(message)
                case events.NodeGone() | events.NodeBack():
                    yield from self._outage(message)
                case m.Flush() | m.LabelReturned():
                    yield from self.carry_out(self.executor.take_back(message, self.world.now))
