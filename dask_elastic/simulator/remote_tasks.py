"""Remote tasks in the simulation: the part of an executor that runs away from its home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_elastic.executor.remote import RemotePart
from dask_elastic.simulator.fiber import Bell, Steps
from dask_elastic.topology.component import Component
from dask_elastic.vocab import messages as m

if TYPE_CHECKING:
    from dask_elastic.simulator.world import World


class SimulatedRemoteTasks:
    """Drives the remote tasks of one executor on one node.

    Parameters
    ----------
    world : World
        It carries messages and keeps the ledger.
    part : RemotePart
        Their queues and state.
    component : Component
        What they run.
    node, home : int
        Where they run, and the executor's home.
    """

    def __init__(self, world: World, part: RemotePart, component: Component, node: int, home: int):
        self.world = world
        self.part = part
        self.component = component
        self.node = node
        self.home = home
        self.started = 0
        self._bells: dict[int, Bell] = {}

    def deliver(self, stamp: m.Stamp, message: m.ToRemote) -> None:
        """Take a message of the home, unless it is stale or came before."""
        if self.part.admit(stamp):
            self.receive(message)

    def close(self) -> None:
        """End, since the home has begun anew."""
        self.part.close()
        for bell in self._bells.values():
            bell.ring()

    def receive(self, message: m.ToRemote) -> None:
        """Put a message in its task's queue, and wake the task."""
        wake = self.part.receive(message)
        self.world.touched.add(self.part.identity)
        if isinstance(message, m.StartTask):
            self._bells[message.task] = Bell()
            self.started += 1
            name = f"{self.part.identity} remote task {message.task}"
            self.world.spawn(name, self._run_task(message.task), self.node)
        elif wake:
            self._bells[message.task].ring()

    def flush_due(self) -> Steps:
        """Let every task send its dirty state home when its turn comes."""
        for number in list(self.part.tasks):
            yield None
            self.receive(self.part.flush_due(number))

    def _run_task(self, task: int) -> Steps:
        processor = self.world.processor(self.component, task, self.part.store, self.home)
        while not self.part.closed:
            message = self.part.take(task)
            if message is None:
                yield from self._bells[task].wait()
                continue
            yield None
            self.world.touched.add(self.part.identity)
            match message:
                case m.SubBatch(batch=batch):
                    deliveries = processor.process(batch)
                    yield None
                    busy = self.world.busy(batch.rows.num_rows)
                    yield from self._send(self.part.processed(message, deliveries, busy))
                case m.Label() | m.Install() | m.FlushRequest() | m.StopTask():
                    yield from self._send(self.part.control(message))
                    self.part.settle()
                case m.StartTask():
                    raise AssertionError(f"{message} is no item of a queue")
            if isinstance(message, m.StopTask):
                return

    def _send(self, messages: list[m.ToHome]) -> Steps:
        for message in messages:
            self.world.say("sends {}", type(message).__name__)
            self.world.send_message(self.node, self.home, self.part.identity, self.part.stamp(), message)
            yield None
