"""Hosts the driver of an executor's remote tasks on fibers of the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing

from dask_elastic.executor.drivers.remote_driver import RemoteDriver
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.limits import Haste
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.remote import RemotePart
from dask_elastic.simulator.fiber import Bell, FiberSteps
from dask_elastic.simulator.surroundings import Surroundings
from dask_elastic.topology.component import Component
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch, Delivery


class RemoteFibers:
    """The remote tasks of one executor on one node: their driver, and the fibers that it asks for.

    Parameters
    ----------
    world : Surroundings
        Carries messages and keeps the ledger.
    part : RemotePart
        Queues and state of the tasks.
    component : Component
        What they run.
    node, home : int
        Where they run, and the executor's home.

    Attributes
    ----------
    started : int
        Tasks started so far.
    """

    def __init__(self, world: Surroundings, part: RemotePart, component: Component, node: int, home: int):
        self.world = world
        self.part = part
        self.component = component
        self.node = node
        self.home = home
        self.started = 0
        self.driver = RemoteDriver(part, self)

    def receive(self, stamp: m.Stamp, message: m.ToRemote) -> FiberSteps:
        """Take a message of the home, unless it is stale or a repetition."""
        if self.part.admit(stamp):
            yield from self.world.drive(self.driver.receive(message), self.part.identity)

    def close(self) -> None:
        """End the tasks."""
        self.driver.close()

    # what the driver asks for (RemoteHost)

    @property
    def ended(self) -> bool:
        """Simulated jobs end by themselves."""
        return False

    def now(self) -> float:
        """Return the virtual time."""
        return self.world.now

    def bell(self) -> Bell:
        """Make a bell."""
        return Bell()

    def start(self, name: str, steps: Steps[None]) -> None:
        """Run steps in a fiber of this node."""
        self.started += 1
        self.world.spawn(f"{self.part.identity} {name}", self.world.drive(steps, self.part.identity), self.node)

    def processor(self, task: int) -> AbstractContextManager[Processor]:
        """Return the logic of a task."""
        sinks = self.world.placement.node_of(self.part.identity)
        return closing(self.world.processor(self.component, task, self.part.store, sinks))

    def process(self, processor: Processor, batch: Batch) -> tuple[list[Delivery], float]:
        """Process a batch in one step; its busy seconds are drawn."""
        return processor.process(batch), self.world.busy(batch.rows.num_rows)

    def leave_run(self, steps: Steps[None]) -> bool:
        """Let another fiber carry out brief work, with the probability `WorldOptions.leaves`."""
        leaves = self.world.options.leaves
        if not leaves or self.world.schedule.draw() >= leaves:
            return False
        self.start("left", steps)
        return True

    def haste(self) -> Haste:
        """Return how long the caller may run a task: the fiber to which a run was left does nothing else."""
        return Haste.RUNS

    def send(self, messages: Sequence[m.ToHome]) -> bool:
        """Send messages to the home; returns False if the connection is broken, whether or not the home gave it up."""
        if not self.world.network.is_connected(self.node, self.home):
            return False
        for message in messages:
            self.world.record("sends {}", type(message).__name__)
            self.world.send_message(self.node, self.home, self.part.identity, self.part.stamp(), message)
        return True
