"""One generation of a simulated job: its world, and what its instances contribute to checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.control.checkpoint_progress import unsaved_ends
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.simulator.checkpoints import ExecutorCut, SourceStanding
from dask_elastic.simulator.durability.sink_target import Transaction
from dask_elastic.simulator.durability.storage import SimulatedStorage
from dask_elastic.simulator.durability.transactional_sink import GenerationStart, TransactionalSink
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.instances import Durability, JobInstances
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import SinkOperator
from dask_elastic.topology.transactions import recovered_writers
from dask_elastic.vocab.errors import CheckpointError
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.simulator.world import World


class Scheduler(Protocol):
    """What nodes tell a scheduler; implemented by `SimulatedCoordinator`."""

    @property
    def reached(self) -> Scheduler:
        """The scheduler that messages reach: if this one was lost, the next one may run at the same address."""
        ...

    def acknowledge(self, generation: int, number: int, instance: ExecutorId, part: object) -> None:
        """Take what an instance has contributed to the checkpoint in progress."""
        ...

    def part_failed(self, generation: int, number: int) -> None:
        """Give up the checkpoint in progress, because an instance could not contribute to it."""
        ...

    def request(self, generation: int) -> None:
        """Take a checkpoint soon."""
        ...

    def fail(self, generation: int) -> None:
        """End the job, because a sink has failed; another scheduler resumes it."""
        ...


class SimulatedGeneration(Durability):
    """Passes what instances contribute on to storage and to the coordinator of their cluster.

    Parameters
    ----------
    coordinator : Scheduler
        The coordinator that has started the generation.
    storage : SimulatedStorage
        The storage.
    start : GenerationStart
        Its number, and the checkpoint from which it begins.
    prepared : sequence of tuple of Transaction
        What the writers had prepared for that checkpoint, by their nodes.

    Attributes
    ----------
    world : World or None
        Where it runs, once that is built.
    instances : list of ExecutorId
        All sources, executors and sinks.
    saved : bool
        Whether a checkpoint that began when all instances had ended is complete.
    """

    def __init__(
        self,
        coordinator: Scheduler,
        storage: SimulatedStorage,
        start: GenerationStart,
        prepared: tuple[tuple[Transaction, ...], ...],
    ):
        super().__init__(self)
        self.coordinator = coordinator
        self.storage = storage
        self.start = start
        self.instances: list[ExecutorId] = []
        self.saved = False
        self._prepared = prepared
        self.world: World | None = None

    @property
    def is_moving(self) -> bool:
        """Whether a home is moving, or key groups are, so that no checkpoint begins."""
        return self.world is not None and self.world.is_bound

    @property
    def finished(self) -> bool:
        """Whether all instances have ended, and a checkpoint contains their last rows."""
        if self.world is None or not self.world.finished:
            return False
        components = self.world.components
        sinks = {name for name, component in components.items() if isinstance(component.operator, SinkOperator)}
        return self.saved or not unsaved_ends({name: one.inputs for name, one in components.items()}, sinks)

    def sink(self, world: JobInstances, identity: ExecutorId, inputs: Inputs) -> TransactionalSink:
        """Return a new instance of a sink, with what writers had prepared that are its own to commit."""
        inputs_of = (world.placement.instances(name) for name in world.components[identity.component].inputs)
        nodes = sorted({world.placement.node_of(instance) for upstream in inputs_of for instance in upstream})
        recovered = [
            transaction
            for writer in recovered_writers(len(self._prepared), nodes, identity.index)
            for transaction in self._prepared[writer]
        ]
        return TransactionalSink(world, identity, inputs, self, recovered)

    # what instances contribute

    def add(self, instance: ExecutorId) -> None:
        """Add an instance of the job."""
        self.instances.append(instance)

    def reached(self, checkpoint: int, source: ExecutorId, standing: SourceStanding) -> None:
        """Take where a source has sent the barrier."""
        self._spawn(source, self._acknowledge(checkpoint, source, standing))

    def cut(self, checkpoint: int, executor: ExecutorId, store: PrimaryState) -> None:
        """Copy the state of each compute of an executor; it is then written."""
        for operator, part in store.stores(executor.component).items():
            copied = ExecutorCut(KeyedStore.extract(part), None, part.input_schema, store.event_time, store.groups)
            self._spawn(executor, self._write(checkpoint, ExecutorId(operator, executor.index), copied))

    def received(self, checkpoint: int, sink: ExecutorId, batches: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Raise: sinks of durable jobs prepare."""
        raise AssertionError(f"{sink} does not prepare")

    def prepared(self, checkpoint: int, sink: ExecutorId, handles: tuple[object, ...]) -> None:
        """Take what a writer has prepared and not committed."""
        self._spawn(sink, self._acknowledge(checkpoint, sink, handles))

    def request(self, sink: ExecutorId) -> None:
        """Request a checkpoint soon."""
        self._spawn(sink, self._request())

    def failed(self, sink: ExecutorId) -> None:
        """End the job because a sink has failed; it is then resumed."""
        self._spawn(sink, self._fail())

    def _spawn(self, instance: ExecutorId, steps: FiberSteps) -> None:
        world = self.world
        assert world is not None, "instances run in a world"
        world.spawn(f"{instance} tells", steps, world.placement.node_of(instance))

    def _write(self, checkpoint: int, executor: ExecutorId, copied: ExecutorCut) -> FiberSteps:
        path = f"state/{checkpoint}/{executor.component}-{executor.index}-{self.start.generation}"
        try:
            file = yield from self.storage.request("state", partial(self._store, path, copied))
        except CheckpointError:
            self.coordinator.reached.part_failed(self.start.generation, checkpoint)
            return
        yield from self._acknowledge(checkpoint, executor, file)

    def _store(self, path: str, copied: ExecutorCut) -> FileRef:
        file = self.storage.folder.write(path, [b"state"])
        self.storage.states[path] = copied
        return file

    def _acknowledge(self, checkpoint: int, instance: ExecutorId, part: object) -> FiberSteps:
        yield None
        self.coordinator.reached.acknowledge(self.start.generation, checkpoint, instance, part)

    def _request(self) -> FiberSteps:
        yield None
        self.coordinator.reached.request(self.start.generation)

    def _fail(self) -> FiberSteps:
        yield None
        self.coordinator.reached.fail(self.start.generation)


def halt(world: World, survivors: Collection[int]) -> None:
    """End a generation on all nodes but some, which have not noticed and cannot reach the others."""
    world.schedule.forget_calls()
    for node in range(world.placement.nodes):
        if node not in survivors:
            world.schedule.kill(node)
            world.network.kill(node)
