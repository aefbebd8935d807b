"""What the parts of a simulated job need of the world around them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

from dask_elastic.executor import events
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.processor import Processor
from dask_elastic.simulator.checkpoints import CheckpointParts
from dask_elastic.simulator.event_times import EventTimes
from dask_elastic.simulator.fiber import Condition, FiberSteps
from dask_elastic.simulator.ledger import Ledger
from dask_elastic.simulator.network import Network
from dask_elastic.simulator.placement import Placement
from dask_elastic.simulator.record_ledger import RecordLedger
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.simulator.world_options import WorldOptions
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.topology.component import Component
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Delivery
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import Stamp, ToHome, ToRemote
from dask_elastic.vocab.watermark import Watermark


class Surroundings(Protocol):
    """The clock, the channels and the ledgers of a simulated job; implemented by `World`."""

    components: dict[str, Component]
    options: WorldOptions
    schedule: Schedule
    network: Network
    ledger: Ledger
    record_ledger: RecordLedger
    event_times: EventTimes
    checkpoints: CheckpointParts
    placement: Placement

    @property
    def now(self) -> float:
        """The virtual time, seconds."""
        ...

    def record(self, what: str, *values: object) -> None:
        """Add an entry to the history."""
        ...

    def spawn(self, name: str, steps: FiberSteps, node: int | None = None) -> None:
        """Add a fiber; one that belongs to a node is stopped and lost with it."""
        ...

    def drive(self, steps: Steps[None], executor: ExecutorId) -> FiberSteps:
        """Run the steps of an executor's driver in the calling fiber."""
        ...

    def processor(self, component: Component, task: int, store: ComponentStore, home: int) -> Processor:
        """Return the logic of a task."""
        ...

    def busy(self, rows: int) -> float:
        """Draw the seconds for which a number of rows keeps a core busy."""
        ...

    def deliver(self, origin: ExecutorId, deliveries: Iterable[Delivery]) -> FiberSteps:
        """Hand batches to the next receivers; waits while their windows are full."""
        ...

    def deliver_now(
        self, origin: ExecutorId, deliveries: Sequence[Delivery]
    ) -> Generator[Condition | None, None, Sequence[Delivery]]:
        """Hand batches to the next receivers until a window is full; returns the others."""
        ...

    def release(self, origin: ExecutorId, target: ExecutorId, nbytes: int) -> None:
        """Return credit to an upstream instance."""
        ...

    def emit_watermark(self, watermark: Watermark) -> FiberSteps:
        """Send a watermark to the next receivers."""
        ...

    def emit_barrier(self, barrier: Barrier) -> FiberSteps:
        """Send a barrier to the next receivers."""
        ...

    def instance_ended(self, identity: ExecutorId) -> FiberSteps:
        """Tell the next receivers that an instance has delivered its last batch."""
        ...

    def depart(self, executor: ExecutorId) -> FiberSteps:
        """Hand an executor that is drained over to its new home."""
        ...

    def pass_on(self, executor: ExecutorId, event: events.Event) -> FiberSteps:
        """Let an executor handle an event at its new home, once it is there."""
        ...

    def send_message(
        self, source: int, target: int, executor: ExecutorId, stamp: Stamp, message: ToRemote | ToHome
    ) -> None:
        """Send a message between an executor's home and its remote tasks."""
        ...
